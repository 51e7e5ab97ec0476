"""What a rank sees of another one that ended: its collective calls fail."""

import torch.distributed as dist


class RankLost(RuntimeError):
    """Another rank ended, or did not answer; the message says in which step."""


def from_collectives(error: RuntimeError) -> bool:
    """Whether an error comes from communication between ranks."""
    # gloo and HCCL raise plain RuntimeErrors, which name the file of its source, and its function.
    return isinstance(error, dist.DistError) or any(each in str(error) for each in ("gloo", "HCCL"))
