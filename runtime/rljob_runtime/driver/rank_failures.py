"""Which rank's failure ended a call of all ranks.

Where one rank ends, the others' collective calls fail, and any of them may be told first: gloo hears of a
process that is gone as soon as Ray does. What they say names neither that rank nor why it ended.

Guarantees: what only says that another rank is missing is told where nothing that explains it comes soon
after; anything else is told at once.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

_SOON_SECONDS = 10.0
"""Within which Ray tells of a process that is gone."""
_LOST = ("RankLost", "DistError")
"""Names of the errors of a rank, or of classes that they are derived from, of which another rank is the
cause. By name: the driver has no other use for torch."""


def by_another(error: BaseException) -> bool:
    """Whether what a rank raised comes of another rank's end."""
    cause = getattr(error, "cause", None)
    if cause is None:
        return False
    # gloo and HCCL raise plain RuntimeErrors, which name the file of its source, and its function.
    plain = isinstance(cause, RuntimeError) and any(each in str(cause) for each in ("gloo", "HCCL"))
    return plain or any(each.__name__ in _LOST for each in type(cause).__mro__)


async def first_cause(error: Exception, calls: "Sequence[asyncio.Task[Any]]") -> BaseException:
    """What ended the calls of ranks, of which `error` is what the first one raised."""
    if not by_another(error):
        return error
    clock = asyncio.get_running_loop().time
    until = clock() + _SOON_SECONDS
    while True:
        raised = [call.exception() for call in calls if call.done() and not call.cancelled()]
        cause = next((each for each in raised if each is not None and not by_another(each)), None)
        if cause is not None:
            return cause
        left = [call for call in calls if not call.done()]
        if not left or clock() >= until:
            return error
        await asyncio.wait(left, timeout=until - clock(), return_when=asyncio.FIRST_COMPLETED)
