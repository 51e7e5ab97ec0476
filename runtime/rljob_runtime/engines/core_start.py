"""Times vLLM's own start, inside the processes of its engine core.

Guarantees: each call that is timed is vLLM's own, with what it is given and returns; a call that this vLLM
does not make is in no answer.
"""

import time
from functools import wraps
from typing import Any

from rljob_runtime.engines.made_workers import when_made
from rljob_runtime.site.own_start import OwnStart, StartPart, created

_CALLS = {
    "init_device": "device",
    "load_model": "load",
    "determine_available_memory": "profile",
    "compile_or_warm_up_model": "graphs",
}
"""Methods of vLLM's workers that its start calls, one after the other, and the part that each is."""
_BOOT = "boot"
"""Of a worker's process: Python starts, and imports vLLM."""
_boot_end: list[float] = []
"""When this process had imported vLLM, in seconds since the epoch; empty where it does not wait after it."""


class TimedStart:
    """Methods that are called on every rank of an engine."""

    def start_parts(self: Any) -> list[tuple[str, float, float]]:
        """What `time_start` has timed: part, start (seconds since the epoch), seconds."""
        own: OwnStart | None = getattr(self, "rljob_start", None)
        return [] if own is None else [(each.part, each.start, each.seconds) for each in own.parts]


def boot_ends() -> None:
    """This process has imported vLLM, and waits for what it is to do."""
    _boot_end[:] = [time.time()]


def time_start() -> None:
    """Have the workers that are made in this process from now on time the parts of their start."""
    when_made(_time)


def _time(worker: Any) -> None:
    own = worker.rljob_start = OwnStart()
    own.process(_BOOT, created(), *_boot_end)
    for call, part in _CALLS.items():
        # On the worker itself, which comes before its class, whichever that is.
        if hasattr(worker, call):
            setattr(worker, call, _timed(getattr(worker, call), own, part))


def _timed(call: Any, own: OwnStart, part: str) -> Any:
    @wraps(call)
    def timed(*arguments: Any, **options: Any) -> Any:
        with own.part(part):
            return call(*arguments, **options)

    return timed


def over_ranks(ranks: list[list[tuple[str, float, float]]], asked: float) -> list[StartPart]:
    """The parts of an engine that was asked for at `asked`, from those of its ranks: each from the first
    rank's begin to the last one's end. vLLM makes each call on all ranks, and waits for all, before the next
    one. A process that was there before is no part."""
    found: list[StartPart] = []
    for part in (_BOOT, *_CALLS.values()):
        times = [
            (start, start + seconds)
            for own in ranks
            for name, start, seconds in own
            if name == part and start >= asked
        ]
        if times:
            began = min(start for start, _ in times)
            found.append(StartPart(part, began, max(end for _, end in times) - began))
    return found
