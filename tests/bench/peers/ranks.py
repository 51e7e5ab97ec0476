"""A module in one process for each rank: `python -m tests.bench.peers.ranks RANKS MODULE ARGUMENT...`.

All are of this process's group, so that who ends the group ends them. torch's launcher gives each rank a
session of its own, in which it would outlive a launcher that is killed.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """The exit code: that of the first rank that fails, 0 where none does. It waits as long as they run: who
    starts it has the deadline."""
    ranks, *module = arguments
    port = free_port()
    running = {}
    for rank in range(int(ranks)):
        told = {**os.environ, **variables(rank, int(ranks), port)}
        child = subprocess.Popen([sys.executable, "-m", *module], env=told)
        running[child.pid] = child
    while running:
        pid, status = os.wait()
        if pid not in running:
            continue
        running.pop(pid)
        if code := os.waitstatus_to_exitcode(status):
            # The others would wait for it.
            for child in running.values():
                child.kill()
            return abs(code)
    return 0


def variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torch.distributed and accelerate read, for one machine."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
