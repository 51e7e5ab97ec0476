"""Records how routing divides work by length over time: events of the kind "division", one after the other.

Guarantees: an event covers the time in which the number of engines for long responses stays as it is, and the
cut about as it is, within one step; so there is at most one for each plan of a policy.
"""

import math

from rljob_runtime.routing.policy import Division
from rljob_runtime.trace.record.event_log import EventLog

_ABOUT = 1.1
"""Ratio of two cuts that differ: plans find slightly different ones all the time."""


class DivisionLog:
    """See the module."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._known: tuple[int, float] | None = None
        """Engines and cut; None while work is not divided by length."""
        self._step = 0
        self._since = 0.0

    def look(self, division: Division | None, step: int) -> None:
        """This is how work is divided from now on, in this step."""
        seen = None if division is None else (len(division.engines), division.cut)
        if step == self._step and _alike(seen, self._known):
            return
        now = self._events.clock()
        self._record(now)
        self._known, self._step, self._since = seen, step, now

    def close(self) -> None:
        """Record what was seen last."""
        self._record(self._events.clock())
        self._known = None

    def _record(self, now: float) -> None:
        if self._known is not None:
            engines, cut = self._known
            self._events.add(
                "division", self._step, self._since, now - self._since, engines=engines,
                cut=None if math.isinf(cut) else round(cut),
            )  # fmt: skip


def _alike(one: tuple[int, float] | None, other: tuple[int, float] | None) -> bool:
    if one is None or other is None:
        return one is other
    (engines, cut), (others, cut_then) = one, other
    # Two infinite ones are equal; a finite and an infinite one are not close.
    close = cut == cut_then or max(cut, cut_then) < _ABOUT * max(1.0, min(cut, cut_then))
    return engines == others and close
