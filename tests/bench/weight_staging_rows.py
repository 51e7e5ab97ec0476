"""The figures of `weight_staging`: what its updates took, staged beside loaded in the pause."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tests.bench.figures import Figure

T = TypeVar("T")


@dataclass
class Update:
    """Milliseconds of one update."""

    prepare: float
    """While it generates."""
    pause: float
    load: float
    resume: float
    gap: float
    """From the pause until every request in flight has on average one more token."""
    pace: float
    """Tokens a second in `prepare`, over those before it; not a number where nothing is prepared."""

    made: float
    """Tokens in the pause, by the steps that were under way."""

    @property
    def stall(self) -> float:
        return self.pause + self.load + self.resume

    @property
    def still(self) -> float:
        """From when nothing runs any more."""
        return self.load + self.resume


@dataclass(frozen=True)
class Sent:
    """A version that was sent to one engine."""

    whole: float
    """Milliseconds from the sender's call until all is sent: what the engine takes until it begins to receive
    is in it."""
    rest: float
    """Milliseconds from when the first bucket was sent to when the last one was: both sides are at it."""
    rest_share: float
    """Part of the bytes that is not of the first bucket; 0 where there is only one."""


def after_first(left: Sequence[tuple[int, T]], between: Callable[[T, T], float]) -> tuple[float, float]:
    """Milliseconds from when the first broadcast was done to the last one, and their share of all bytes.
    `left`: bytes of each broadcast, and when it was done; `between`: milliseconds between two of these."""
    sizes = [size for size, _ in left]
    return between(left[0][1], left[-1][1]), sum(sizes[1:]) / sum(sizes)


def sending(transport: str, sent: Sequence[Sent], raw: float | None) -> list[Figure]:
    """`raw`: milliseconds of a raw broadcast of as many bytes."""

    def figure(name: str, values: Sequence[float], share: float) -> Figure:
        baseline = None if raw is None else raw * share
        return Figure(name, statistics.median(values), "ms", baseline, "1.3 x the baseline")

    figures = [figure(f"{transport}: sending a version: median", [one.whole for one in sent], 1.0)]
    if share := sent[-1].rest_share:
        name = f"{transport}: of it after the first bucket ({share:.0%} of the bytes): median"
        figures.append(figure(name, [one.rest for one in sent], share))
    return figures


def report(
    where: str, found: Mapping[bool, Sequence[Update]], distance: Mapping[bool, float], lost: int
) -> list[Figure]:
    def row(name: str, part: str, unit: str = "ms", goal: str | None = None) -> Figure:
        values = {
            kind: float(np.nanmedian([getattr(one, part) for one in updates]))
            for kind, updates in found.items()
        }
        return Figure(f"{where}: {name}: median", values[True], unit, values.get(False), goal)

    longest = max(one.stall for one in found[True])
    return [
        row("stall", "stall", goal="at most 30 ms"),
        Figure(f"{where}: stall: longest", longest, "ms"),
        row("given meanwhile by the steps under way", "made", "tokens"),
        row("of it after the step under way has ended (load and resume)", "still"),
        row("pause", "pause"),
        row("load", "load"),
        row("resume", "resume"),
        row("gap until a token per request", "gap"),
        Figure(
            f"{where}: arriving while it generates: median",
            statistics.median(one.prepare for one in found[True]),
            "ms",
        ),
        Figure(
            f"{where}: pace of generation meanwhile: median",
            float(np.nanmedian([one.pace for one in found[True]])),
            "share",
        ),
        Figure(
            f"{where}: mean difference of log-probabilities after updates",
            distance[True],
            "nats",
            distance.get(False),
        ),
        Figure(f"{where}: responses lost", lost, "responses", goal="0"),
    ]
