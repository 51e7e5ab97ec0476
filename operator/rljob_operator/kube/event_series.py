"""Which Events are written: equal ones are counted into one, and too many of one object are dropped. Pure.

The rules are those of Kubernetes' own recorder: equal happenings within six minutes of each other form a
series; per object a burst of 25 different ones passes, then one every five minutes.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["create", "repeat", "drop"]

_MOST_SERIES = 4096
"""As many as Kubernetes' own recorder remembers."""


@dataclass(frozen=True)
class SeriesRules:
    """Times in seconds."""

    series_gap: float = 360.0
    """A repeat that comes later than this after the last one begins a new Event."""
    burst: int = 25
    """Events of one object that may be created at once."""
    refill: float = 300.0
    """After which one more of that object may be created."""


_RULES = SeriesRules()


@dataclass
class Series:
    """Equal happenings."""

    name: str
    """Name of the Event object."""
    count: int
    """How often it happened."""
    last: float
    """When it happened last."""


@dataclass
class _Allowance:
    tokens: float
    at: float


@dataclass
class SeriesBook:
    """What was reported lately. Bounded: the longest unseen is forgotten first."""

    rules: SeriesRules = _RULES
    _series: dict[Hashable, Series] = field(default_factory=dict)
    _allowances: dict[Hashable, _Allowance] = field(default_factory=dict)

    def happened(self, about: Hashable, what: Hashable, name: str, now: float) -> tuple[Verdict, Series]:
        """`what` happened to the object `about`. `name`: for the Event, should one be created."""
        key = (about, what)
        # Taken out and put back at the end: the first of the mapping is the longest unseen.
        known = self._series.pop(key, None)
        if known is not None and now - known.last <= self.rules.series_gap:
            known.count += 1
            known.last = now
            self._series[key] = known
            return "repeat", known
        new = Series(name, 1, now)
        if not self._allowed(about, now):
            return "drop", new
        self._series[key] = new
        if len(self._series) > _MOST_SERIES:
            del self._series[next(iter(self._series))]
        return "create", new

    def forget(self, about: Hashable, what: Hashable) -> None:
        """The Event is not there any more: the next of this kind is created anew."""
        self._series.pop((about, what), None)

    def _allowed(self, about: Hashable, now: float) -> bool:
        allowance = self._allowances.pop(about, None) or _Allowance(float(self.rules.burst), now)
        gained = (now - allowance.at) / self.rules.refill
        allowance.tokens = min(float(self.rules.burst), allowance.tokens + gained)
        allowance.at = now
        self._allowances[about] = allowance
        if len(self._allowances) > _MOST_SERIES:
            del self._allowances[next(iter(self._allowances))]
        if allowance.tokens < 1.0:
            return False
        allowance.tokens -= 1.0
        return True
