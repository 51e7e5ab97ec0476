"""How long `torch.distributed.broadcast` takes from one new process to another: from the first GPU to the
second one over nccl, or on CPUs over gloo.

python -m tests.bench.raw_broadcast RANK PORT BYTES BACKEND          (`milliseconds` starts both)
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


def milliseconds(size: int, backend: str) -> float:
    """The median of ten broadcasts of `size` bytes; `backend`: nccl or gloo. Raises
    subprocess.SubprocessError where there was none in time."""
    port = Ports().take()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.raw_broadcast", str(rank), str(port), str(size), backend],
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


def main(rank: int, port: int, size: int, backend: str) -> None:
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2,
        device_id=device if device.type == "cuda" else None, timeout=timedelta(seconds=_SECONDS),
    )  # fmt: skip

    def settled() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    data, found = torch.zeros(size, dtype=torch.uint8, device=device), []
    for _ in range(_WARM + _COUNTED):
        dist.barrier(device_ids=[rank] if device.type == "cuda" else None)
        settled()
        began = time.perf_counter()
        dist.broadcast(data, src=0)
        settled()
        found.append(1e3 * (time.perf_counter() - began))
    dist.destroy_process_group()
    print(statistics.median(found[_WARM:]))


if __name__ == "__main__":
    _, which, meeting, length, over = sys.argv
    main(int(which), int(meeting), int(length), over)
