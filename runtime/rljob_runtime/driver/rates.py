"""How fast a job goes: tokens and steps per second and busy shares, over the newest minute of training.

Pure; the time comes with each reading. Guarantees: time before training began, or began again after an
interruption, counts in no rate; nor does the first step after that, once there is a second one: engines and
trainer warm up in it.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

WINDOW_SECONDS = 60.0
"""The newest minute, which the rates are taken over."""


@dataclass(frozen=True)
class Reading:
    """Sums since the job began, as they stand at one moment."""

    time: float
    """In seconds, of any clock."""
    steps: int = 0
    """Steps that were trained, those that are trained again included."""
    tokens: int = 0
    """Response tokens in those steps."""
    trained_seconds: float = 0.0
    """Time that the trainer was at them."""
    pools: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By pool: seconds that its engines were there, summed over all that there ever were, and those of them
    in which they had nothing to do."""


@dataclass(frozen=True)
class Rates:
    """What the newest readings say; nothing where there is only one."""

    seconds: float = 0.0
    """The time that they are taken over."""
    tokens_per_second: float = 0.0
    steps_per_second: float = 0.0
    steady: bool = False
    """Whether the time of later steps may be told from it: there is more than a first step, or that one took
    so long that warming up is a small part of it."""
    busy: Mapping[str, float] = field(default_factory=dict)
    """Busy share of each pool's time and of the trainer's, 0 to 1; without pools that had no engine."""


class RateWindow:
    """Keeps the readings that the rates are taken from."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque()
        self._warming_up = True

    def begin(self, reading: Reading) -> None:
        """Training begins, or begins again."""
        self._readings = deque([reading])
        self._warming_up = True

    def step_done(self, reading: Reading) -> None:
        """A step was trained; before the first `begin` it begins the window."""
        readings = self._readings
        readings.append(reading)
        # The first interval holds the warm-up. It is all there is until there is a second one.
        if self._warming_up and len(readings) > 2:
            readings.popleft()
            self._warming_up = False
        # Two readings stay, so that steps longer than the window have rates too.
        while len(readings) > 2 and reading.time - readings[0].time > WINDOW_SECONDS:
            readings.popleft()

    def rates(self) -> Rates:
        """The rates over the readings in the window."""
        if len(self._readings) < 2:
            return Rates()
        first, last = self._readings[0], self._readings[-1]
        # The clock may show the same time twice.
        elapsed = max(last.time - first.time, 1e-9)
        return Rates(
            seconds=elapsed,
            tokens_per_second=(last.tokens - first.tokens) / elapsed,
            steps_per_second=(last.steps - first.steps) / elapsed,
            steady=not self._warming_up or elapsed > WINDOW_SECONDS,
            busy=_shares(first, last),
        )

    def busy(self, now: Reading) -> tuple[float, Mapping[str, float]]:
        """Busy shares within a step: the time that they are of, in seconds, and the share of each pool and of
        the trainer. The time begins with the readings in the window, so that the newest whole step is part of
        it."""
        if not self._readings:
            return 0.0, {}
        first = self._readings[0]
        return now.time - first.time, _shares(first, now)


def _shares(first: Reading, last: Reading) -> dict[str, float]:
    """Busy share of each pool that had an engine between two readings, and of the trainer."""
    busy = {}
    for pool, (seconds, idle) in last.pools.items():
        seconds_before, idle_before = first.pools.get(pool, (0.0, 0.0))
        if seconds > seconds_before:
            busy[pool] = _share(1 - (idle - idle_before) / (seconds - seconds_before))
    # The clock may show the same time twice.
    elapsed = max(last.time - first.time, 1e-9)
    busy["trainer"] = _share((last.trained_seconds - first.trained_seconds) / elapsed)
    return busy


def _share(value: float) -> float:
    """Cut to 0 to 1, for sums of seconds are not exact."""
    return min(1.0, max(0.0, value))
