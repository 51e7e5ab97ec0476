"""How long `torch.distributed.broadcast` takes from the first GPU to the second one, in two new processes.

python -m tests.bench.raw_broadcast RANK PORT BYTES          (`milliseconds` starts both)
"""

import statistics
import subprocess
import sys
import time
from datetime import timedelta

from tools.cluster.ports import Ports

_SECONDS = 90.0
"""Both processes end within this time, or are ended."""
_COUNTED, _WARM = 10, 2


def milliseconds(size: int) -> float:
    """The median of ten broadcasts of `size` bytes. Raises subprocess.SubprocessError where there was none in
    time."""
    port = Ports().take()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.raw_broadcast", str(rank), str(port), str(size)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    until = time.monotonic() + _SECONDS
    try:
        said = [rank.communicate(timeout=max(0.0, until - time.monotonic()))[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank in ranks:
        if rank.returncode:
            raise subprocess.CalledProcessError(rank.returncode, rank.args)
    return float(said[0])


def main(rank: int, port: int, size: int) -> None:
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, device_id=device,
        timeout=timedelta(seconds=_SECONDS),
    )  # fmt: skip
    data, found = torch.zeros(size, dtype=torch.uint8, device=device), []
    for _ in range(_WARM + _COUNTED):
        dist.barrier(device_ids=[rank])
        torch.cuda.synchronize()
        began = time.perf_counter()
        dist.broadcast(data, src=0)
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - began))
    dist.destroy_process_group()
    print(statistics.median(found[_WARM:]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
