"""Records where the time of a worker's start went, as `start` events."""

from collections.abc import Sequence

from rljob_runtime.site.own_start import StartPart
from rljob_runtime.trace.record.event_log import EventLog


def record_start(events: EventLog, step: int, parts: Sequence[StartPart]) -> None:
    """Record one start of the log's worker. Its events have in common when it began, as `since`: a worker may
    be started again."""
    since = min((each.start for each in parts), default=0.0)
    for each in parts:
        events.add("start", step, each.start, each.seconds, part=each.part, since=since)
