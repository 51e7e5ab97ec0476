"""What a rank sees of another one that ended: its collective calls fail."""

import torch.distributed as dist


class RankLost(RuntimeError):
    """Another rank ended, or did not answer; the message says in which step."""


def from_collectives(error: RuntimeError) -> bool:
    """Whether an error comes from communication between ranks."""
    # gloo raises plain RuntimeErrors, which name the file of its source.
    return isinstance(error, dist.DistError) or "gloo" in str(error)
