"""Time spent in the parts of a step, recorded as events and summed for the step's metrics."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rljob_runtime.trace.record.event_log import EventLog


class Phases:
    """Times parts of a step; the device is waited for at both ends, so that its work is counted."""

    def __init__(self, events: EventLog, synchronize: Callable[[], None]) -> None:
        self.seconds: dict[str, float] = {}
        """Seconds spent in each kind of event since the last `take`."""
        self._events = events
        self._synchronize = synchronize

    @contextmanager
    def span(self, event: str, step: int, **extra: Any) -> Iterator[None]:
        """Time the body."""
        self._synchronize()
        start = self._events.clock()
        try:
            yield
        finally:
            self._synchronize()
            duration = self._events.clock() - start
            self._events.add(event, step, start, duration, **extra)
            self.seconds[event] = self.seconds.get(event, 0.0) + duration

    def take(self) -> dict[str, float]:
        """Return the sums, in seconds rounded to microseconds, and set them back to 0."""
        taken, self.seconds = self.seconds, {}
        return {event: round(seconds, 6) for event, seconds in taken.items()}
