"""Time spent in the parts of a step, recorded as events and summed for the step's metrics.

Guarantees: timing a part never waits for the device; on a device a part lasts from where the device began
with it to where it was done, by marks in its queue of work, which are read at the step's end.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_runtime.trace.record.event_log import EventLog


class Mark(Protocol):
    """A place in a device's queue of work, as torch.cuda.Event with `enable_timing`."""

    def record(self) -> None:
        """Put it into the queue."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has come to it."""
        ...

    def elapsed_time(self, later: Any) -> float:
        """Milliseconds from here to `later`; both have been reached."""
        ...


@dataclass(frozen=True)
class Timed:
    """A part of a step."""

    event: str
    step: int
    seconds: float
    extra: dict[str, Any]
    compile_seconds: float = 0.0
    """In which torch compiled something, and the device waited."""


@dataclass
class _Open:
    """A part that is not yet read."""

    event: str
    step: int
    extra: dict[str, Any]
    begin: Any
    """A mark, or seconds by the log's clock."""
    compile_seconds: float
    """Until its begin; then, within it."""
    end: Any = None


class Phases:
    """Times parts of a step."""

    def __init__(
        self,
        events: EventLog,
        mark: Callable[[], Mark] | None = None,
        compile_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`mark` makes marks; None: there is no device, and parts are timed by the log's clock.
        `compile_seconds`: how long something was compiled, until now."""
        self._compile_seconds = compile_seconds
        self._events = events
        self._mark = mark
        self._open: list[_Open] = []
        self._timed: list[Timed] = []
        self._first: tuple[Any, float] | None = None
        """The first mark that is not yet read, and the log's clock when it was reached."""

    @contextmanager
    def span(self, event: str, step: int, *, wait: bool = False, **extra: Any) -> Iterator[None]:
        """Time the body, and what it gives the device to do; with `wait` that is waited for, and the event
        is recorded at once."""
        part = _Open(event, step, extra, self._now(), self._compile_seconds())
        try:
            yield
        finally:
            part.end = self._now()
            part.compile_seconds = self._compile_seconds() - part.compile_seconds
            self._open.append(part)
            if wait:
                self._read()

    def take(self) -> list[Timed]:
        """What was timed since the last call, in the order in which it ended; recorded as events. Waits for
        the device."""
        self._read()
        taken, self._timed = self._timed, []
        return taken

    def _read(self) -> None:
        parts, self._open = self._open, []
        if parts and self._mark is not None:
            parts[-1].end.synchronize()
        for part in parts:
            start, seconds = self._times(part)
            self._events.add(part.event, part.step, start, seconds, **part.extra)
            self._timed.append(Timed(part.event, part.step, seconds, part.extra, part.compile_seconds))
        self._first = None

    def _now(self) -> Any:
        if self._mark is None:
            return self._events.clock()
        mark = self._mark()
        mark.record()
        if self._first is None:
            # Between steps the device is idle, so that this waits for nothing.
            mark.synchronize()
            self._first = mark, self._events.clock()
        return mark

    def _times(self, part: _Open) -> tuple[float, float]:
        """When it began, by the log's clock, and how long it took, in seconds."""
        if self._first is None:
            return part.begin, part.end - part.begin
        first, clock = self._first
        return clock + first.elapsed_time(part.begin) / 1e3, part.begin.elapsed_time(part.end) / 1e3


def seconds_by_event(timed: list[Timed]) -> dict[str, float]:
    """Seconds of each kind of event, rounded to microseconds."""
    sums: dict[str, float] = {}
    for part in timed:
        sums[part.event] = sums.get(part.event, 0.0) + part.seconds
    return {event: round(seconds, 6) for event, seconds in sums.items()}
