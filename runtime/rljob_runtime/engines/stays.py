"""What a request's time on its engine was made of.

Pure: marks and pauses in, seconds of each phase out. Guarantees: the phases are disjoint, and together they
are the time from the request's submit to its end; time of a pause is `paused`, whatever the request was at.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from rljob_runtime.samples import Timing

Mark: TypeAlias = tuple[Literal["scheduled", "token", "preempted"], float]
"""Something that happened to a request, and when, in seconds of a clock that never goes back: the engine
began to compute its tokens, or to compute them anew; the first token after that; its KV cache was dropped."""


class Pauses:
    """When an engine stood still, as far back as a request of it may have been there."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float]] = deque()
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """The engine stands still from now on; nothing where it does already."""
        if self._since is None:
            self._since = now

    def end(self, now: float, oldest: float) -> None:
        """It goes on. `oldest`: when the oldest of its requests was submitted; pauses before that are
        forgotten."""
        if self._since is not None:
            self._ended.append((self._since, now))
            self._since = None
        self._forget(oldest)

    def add(self, since: float, until: float, oldest: float) -> None:
        """It stood still from then to then; `oldest` as for `end`."""
        self._ended.append((since, until))
        self._forget(oldest)

    def _forget(self, oldest: float) -> None:
        while self._ended and self._ended[0][1] <= oldest:
            self._ended.popleft()

    def within(self, start: float, end: float) -> float:
        """Seconds of [start, end] in which it stood still."""
        return sum(max(0.0, min(end, until) - max(start, since)) for since, until in self._all())

    def cover(self, time: float) -> bool:
        """Whether it stood still then."""
        return any(since <= time <= until for since, until in self._all())

    def _all(self) -> Sequence[tuple[float, float]]:
        if self._since is None:
            return self._ended
        return *self._ended, (self._since, float("inf"))


def timing_of(submitted: float, marks: Sequence[Mark], ended: float, pauses: Pauses) -> Timing:
    """Where the time of a request went that was submitted and has ended at these times, given its marks in
    their order.

    A KV cache that is dropped in a pause was dropped for a weight update: the request then waits as a new one
    does, and counts as pre-empted only where the engine dropped it for want of room."""
    seconds: dict[str, float] = defaultdict(float)
    phase, began, computed, preemptions = "queued", submitted, False, 0
    for what, time in (*marks, ("ended", ended)):
        at = min(max(time, began), max(ended, submitted))
        paused = pauses.within(began, at)
        seconds[phase] += at - began - paused
        seconds["paused"] += paused
        began = at
        if what == "scheduled":
            phase, computed = "recomputed" if computed else "prefill", True
        elif what == "token":
            phase = "decode"
        elif what == "preempted" and pauses.cover(at):
            phase = "queued"
        elif what == "preempted":
            phase, preemptions = "preempted", preemptions + 1
    # Never negative: differences of clock readings are rounded.
    whole = {name: max(0.0, value) for name, value in seconds.items()}
    return msgspec.structs.replace(Timing(preemptions=preemptions), **whole)
