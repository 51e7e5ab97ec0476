"""Bytes from rank 0 to all ranks, over torch.distributed."""

from collections.abc import Sequence

import torch
import torch.distributed as dist


def broadcast(frames: Sequence[bytes] | None) -> list[bytes] | None:
    """Rank 0's frames, on every rank; None where rank 0 gives None. Other ranks' argument is ignored."""
    if dist.get_world_size() == 1:
        return list(frames) if frames is not None else None
    first = dist.get_rank() == 0
    # -1 stands for None. All tensors are in main memory, so that gloo carries them.
    count = torch.tensor([-1 if frames is None else len(frames)])
    dist.broadcast(count, src=0)
    if count.item() < 0:
        return None
    mine = list(frames or []) if first else []
    sizes = (
        torch.tensor([len(frame) for frame in mine]) if first else torch.zeros(int(count), dtype=torch.int64)
    )
    if not len(sizes):
        return []
    dist.broadcast(sizes, src=0)
    data = bytearray(b"".join(mine)) if first else bytearray(int(sizes.sum()))
    if data:
        # The tensor is a view of `data`: what other ranks receive lands there.
        dist.broadcast(torch.frombuffer(data, dtype=torch.uint8), src=0)
    ends = sizes.cumsum(0).tolist()
    return [bytes(data[end - size : end]) for end, size in zip(ends, sizes.tolist(), strict=True)]
