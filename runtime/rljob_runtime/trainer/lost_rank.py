"""What a rank sees of another one that ended: its collective calls fail, or never end.

Over gloo and HCCL they fail. A kernel of NCCL waits on, and a thread of torch's ends the process once the
time-out is over, if it is let: it tells where the call was made, for which it needs Python's lock, and the
thread that waits for the device may hold that for ever.
"""

from collections.abc import MutableMapping

import torch.distributed as dist

_RECORD = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""How many calls torch remembers, by its new name and its old one."""


class RankLost(RuntimeError):
    """Another rank ended, or did not answer; the message says in which step."""


def from_collectives(error: RuntimeError) -> bool:
    """Whether an error comes from communication between ranks."""
    # gloo and HCCL raise plain RuntimeErrors, which name the file of its source, and its function.
    return isinstance(error, dist.DistError) or any(each in str(error) for each in ("gloo", "HCCL"))


def end_at_time_out(environment: MutableMapping[str, str]) -> None:
    """Have torch end this process without Python's lock when a call over NCCL has timed out: it remembers no
    calls, of which it would say where they were made, and waits for nobody to write them down (a minute).
    Before ranks join. Who sets how many it remembers has that."""
    if not any(name in environment for name in _RECORD):
        environment[_RECORD[0]] = "0"
        environment.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
