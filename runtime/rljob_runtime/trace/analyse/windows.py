"""Which time belongs to which step, which steps stand out, and which are shown in detail.

Pure. A step's window begins where the step before it ended, so that all time between a run's first step and
its last belongs to a step, apart from what interruptions cost, and from steps whose rows are gone. The first
step's begins when engines and trainer were ready: starting them is no step's time.
"""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rljob_runtime.trace.record.metrics_log import Metrics
from rljob_runtime.trace.record.start_log import Start

NEIGHBOURS = 25
"""Steps on each side that a step is compared with."""
DEVIATIONS = 6.0
"""A step stands out if it took so many standard deviations longer than its neighbours' median, and `FACTOR`
times as long. The deviation is taken from the median of absolute deviations, which a few slow steps among the
neighbours do not change."""
FACTOR = 1.5
"""Times the median of the neighbours: where steps hardly differ, deviations alone mean nothing."""


@dataclass(frozen=True)
class Window:
    """The time of one step, seconds since the epoch."""

    step: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Anomaly:
    """A step that took far longer than its neighbours."""

    step: int
    seconds: float
    median: float
    """Median of its neighbours' durations, in seconds."""


def windows_from_metrics(metrics: Metrics, starts: Sequence[Start]) -> list[Window]:
    """The windows of all steps, by the times at which they were recorded.

    The first step, and each first one after an interruption, begins when training began. Where the beginning
    of a run is not known, its first step is taken to begin `step_seconds` before its end.
    """
    found: list[Window] = []
    for row in metrics.rows:
        step, end = int(row["step"]), float(row["time"])
        times = [start.time for start in starts if start.step <= step and start.time <= end]
        if isinstance(row.get("began"), (int, float)):
            times.append(float(row["began"]))
        elif found:
            times.append(found[-1].end)
        elif not times:
            times.append(end - float(row.get("step_seconds") or 0.0))
        # Never a beginning after its end: a driver that moved may have another host's clock.
        found.append(Window(step, min(max(times), end), end))
    return found


def windows_from_events(ends: Mapping[int, tuple[float, float]]) -> list[Window]:
    """Windows where there are no metrics: from each step's (first start, last end) of its events."""
    found: list[Window] = []
    for step in sorted(ends):
        start, end = ends[step]
        found.append(Window(step, min(found[-1].end if found else start, end), end))
    return found


def lost_seconds(windows: Sequence[Window]) -> float:
    """Time between each window and that of the next step that belongs to neither: what interruptions cost."""
    return sum(
        max(0.0, after.start - before.end)
        for before, after in itertools.pairwise(windows)
        if after.step == before.step + 1
    )


def superseded(starts: Sequence[Start], step: int, end: float) -> bool:
    """Whether an event of `step` that ended at `end` belongs to work that was thrown away when training went
    back to an earlier step."""
    return any(start.goes_back and step >= start.step and end < start.time for start in starts)


def find_anomalies(windows: Sequence[Window]) -> list[Anomaly]:
    """Steps whose duration is more than `DEVIATIONS` robust deviations (1.4826 * median absolute deviation)
    and `FACTOR` times above the median of their neighbours; slowest relative to it first."""
    found = []
    seconds = [window.seconds for window in windows]
    for index, window in enumerate(windows):
        around = seconds[max(0, index - NEIGHBOURS) : index] + seconds[index + 1 : index + 1 + NEIGHBOURS]
        if len(around) < 8:
            # Too few to say what is usual.
            continue
        median = statistics.median(around)
        # For normally distributed values 1.4826 times that median is their standard deviation.
        deviation = 1.4826 * statistics.median(abs(value - median) for value in around)
        if window.seconds > max(median + DEVIATIONS * deviation, FACTOR * median):
            found.append(Anomaly(window.step, window.seconds, median))
    return sorted(found, key=lambda anomaly: anomaly.seconds / max(anomaly.median, 1e-9), reverse=True)


def choose_steps(windows: Sequence[Window], anomalies: Iterable[Anomaly], limit: int) -> list[int]:
    """At most `limit` steps to show in detail: the first and last, a third for those that stand out, the rest
    evenly spaced."""
    steps = [window.step for window in windows]
    if len(steps) <= limit:
        return steps
    chosen = {steps[0], steps[-1]}
    chosen.update([anomaly.step for anomaly in anomalies][: limit // 3])
    # Fewer than `left` may be added, where a step is chosen already.
    left = limit - len(chosen)
    chosen.update(steps[round(index * (len(steps) - 1) / (left + 1))] for index in range(1, left + 1))
    return sorted(chosen)
