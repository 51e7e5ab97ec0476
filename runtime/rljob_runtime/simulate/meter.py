"""What simulated engines did with their time. Arrays have a value for each engine, [engines]. Pure."""

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


class Meter:
    """Sums over time for each engine of one cohort, in seconds. Busy, idle and loading add up to the time
    that went by."""

    def __init__(self, engines: int) -> None:
        self.busy = np.zeros(engines)
        self.idle = np.zeros(engines)
        self.loading = np.zeros(engines)
        """Requests wait while weights are loaded."""
        self.last_busy = np.zeros(engines)
        """When each engine last had a request to work on."""
        self.pushed_out = 0
        """Requests that lost their place in a full KV cache."""
        self.lines: list[list[tuple[float, int]]] = [[] for _ in range(engines)]
        """For each engine: from when on it ran how many requests."""
        self._now = 0.0
        self._shown: Counts = np.full(engines, -1, dtype=np.int64)

    def worked(self, running: Counts, seconds: float, loading: float) -> None:
        """The cohort took steps for so many seconds, in the first `loading` of which it stood still."""
        works = running > 0
        self._now += seconds
        self.busy += works * (seconds - loading)
        self.loading += works * loading
        self.idle += ~works * seconds
        self.last_busy[works] = self._now

    def stood(self, seconds: float) -> None:
        """The cohort had nothing to do for so many seconds."""
        self._now += seconds
        self.idle += seconds

    def changed(self, now: float, running: Counts) -> None:
        """From now on the engines run so many requests."""
        for engine in np.flatnonzero(running != self._shown).tolist():
            self.lines[engine].append((now, int(running[engine])))
        self._shown = running.copy()
