"""What each worker used over the run: processors, memory, accelerators, its engine's cache; pure.

Guarantees: memory is bounded by the workers, and not by the length of the run: of more than `SAMPLES` samples
of a worker two neighbours become one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rljob_runtime.trace.record.event_log import Event

SAMPLES = 512
"""Samples of a worker that are kept, at most: twice the points of a line."""

_LARGEST = frozenset({"memory_mib", "device_memory_mib", "kv_use"})
_COUNTED = frozenset({"prefix_asked", "prefix_hits", "preemptions"})
"""Values whose sum, or the largest, stands for two samples; the mean by time for all others."""


@dataclass(frozen=True)
class UseSample:
    """What was used in some time."""

    start: float
    """Seconds since the epoch."""
    seconds: float
    values: Mapping[str, float]

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass
class WorkerSamples:
    """One worker's samples, in order."""

    worker: str
    pool: str
    samples: list[UseSample] = field(default_factory=list)

    def add(self, sample: UseSample) -> None:
        """Keep it, perhaps as one with its neighbour."""
        self.samples.append(sample)
        if len(self.samples) > SAMPLES:
            found = self.samples
            pairs = zip(found[::2], found[1::2], strict=False)
            last = found[-1:] if len(found) % 2 else []
            self.samples = [together(left, right) for left, right in pairs] + last

    def mean(self, name: str) -> float | None:
        """Mean of a value by time; None where it was never told."""
        told = [(each.values[name], each.seconds) for each in self.samples if name in each.values]
        seconds = sum(length for _, length in told)
        return sum(value * length for value, length in told) / seconds if seconds > 0 else None

    def largest(self, name: str) -> float | None:
        """The largest value; None where it was never told."""
        return max((each.values[name] for each in self.samples if name in each.values), default=None)

    def total(self, name: str) -> float | None:
        """The sum of a value that is counted; None where it was never told."""
        told = [each.values[name] for each in self.samples if name in each.values]
        return sum(told) if told else None


class WorkerUseBook:
    """Takes all events, in order of steps, and keeps the samples of each worker."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerSamples] = {}

    def add_step(self, events: Iterable[Event]) -> None:
        """Take one step's events, in order of their ends."""
        for event in events:
            if event.event != "usage":
                continue
            if event.worker not in self.workers:
                self.workers[event.worker] = WorkerSamples(event.worker, event.pool)
            values = {
                name: float(value) for name, value in event.extra.items() if isinstance(value, int | float)
            }
            self.workers[event.worker].add(UseSample(event.start, event.duration, values))


def together(left: UseSample, right: UseSample) -> UseSample:
    """Two neighbouring samples as one."""
    seconds = left.seconds + right.seconds
    values = {}
    for name in {**left.values, **right.values}:
        told = [(each.values[name], each.seconds) for each in (left, right) if name in each.values]
        if name in _LARGEST:
            values[name] = max(value for value, _ in told)
        elif name in _COUNTED:
            values[name] = sum(value for value, _ in told)
        else:
            length = sum(length for _, length in told)
            values[name] = sum(value * length for value, length in told) / length if length else told[0][0]
    return UseSample(left.start, seconds, values)


def on_grid(samples: Sequence[UseSample], name: str, times: Sequence[float]) -> list[float | None]:
    """A value at each of the ascending `times`: that of the sample in whose time it lies; None in none."""
    found: list[float | None] = []
    index = 0
    for time in times:
        while index < len(samples) and samples[index].end < time:
            index += 1
        there = index < len(samples) and samples[index].start <= time
        found.append(samples[index].values.get(name) if there else None)
    return found
