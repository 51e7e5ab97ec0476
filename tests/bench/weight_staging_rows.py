"""The figures of `weight_staging`: what its updates took, each kind beside the next."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeVar, get_args

import numpy as np

from tests.bench.figures import Figure
from tests.bench.step_clock import Flow

T = TypeVar("T")

Kind = Literal["swapped", "staged", "loaded"]
"""Of an update: what arrived while the engine generated is put in between two steps, or in its pause; or the
version arrives in the pause."""
KINDS: tuple[Kind, ...] = get_args(Kind)


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
    """Tokens in the pause, or until the version was put in, by the steps that were under way."""
    goes_on: float | None = None
    """From the call until the engine's core goes on with the version, where it is not paused."""
    flow: Flow | None = None
    """Its steps meanwhile, where they were recorded."""

    @property
    def stall(self) -> float:
        if self.goes_on is not None:
            return self.goes_on
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
    where: str, found: Mapping[Kind, Sequence[Update]], distance: Mapping[Kind, float], lost: int
) -> list[Figure]:
    """Each kind, and the one after it as its baseline; the last one by itself where it is the only one.
    `distance`: of log-probabilities, nothing where they were not compared."""
    kinds = list(found)
    pairs: list[tuple[Kind, Kind | None]] = [*pairwise(kinds)] or [(kinds[0], None)]
    rows = [row for kind, beside in pairs for row in _beside(where, kind, beside, found, distance)]
    return [*rows, Figure(f"{where}: responses lost", lost, "responses", goal="0")]


def _beside(
    where: str,
    kind: Kind,
    beside: Kind | None,
    found: Mapping[Kind, Sequence[Update]],
    distance: Mapping[Kind, float],
) -> list[Figure]:
    def median(of: Kind | None, value: Callable[[Update], float]) -> float | None:
        return None if of is None else float(np.nanmedian([value(one) for one in found[of]]))

    def row(name: str, value: Callable[[Update], float], unit: str = "ms", goal: str | None = None) -> Figure:
        whole = median(kind, value)
        assert whole is not None
        return Figure(f"{named}: {name}: median", whole, unit, median(beside, value), goal)

    def part(of: Callable[[Flow], float]) -> Callable[[Update], float]:
        return lambda one: np.nan if one.flow is None else of(one.flow)

    named = where if kind == "staged" else f"{where}, {kind}"
    longest = max(one.stall for one in found[kind])
    given = row("given meanwhile by the steps under way", lambda one: one.made, "tokens")
    gap = row("gap until a token per request", lambda one: one.gap)
    arriving = Figure(
        f"{named}: arriving while it generates: median",
        statistics.median(one.prepare for one in found[kind]),
        "ms",
    )
    pace = Figure(
        f"{named}: pace of generation meanwhile: median",
        float(np.nanmedian([one.pace for one in found[kind]])),
        "share",
    )
    apart = []
    if distance:
        name = f"{named}: mean difference of log-probabilities after updates"
        apart = [Figure(name, distance[kind], "nats", None if beside is None else distance[beside])]
    if kind == "swapped":
        return [
            row("stall, no step under way", part(lambda flow: flow.idle), goal="at most 30 ms"),
            row("from the call until it goes on with the version", lambda one: one.stall),
            Figure(f"{named}: from the call until it goes on with the version: longest", longest, "ms"),
            given,
            row("longest time without a token", part(lambda flow: flow.longest)),
            row("usual time between two steps", part(lambda flow: flow.usual)),
            gap,
            *apart,
        ]
    return [
        row("stall", lambda one: one.stall, goal="at most 30 ms"),
        Figure(f"{named}: stall: longest", longest, "ms"),
        given,
        row("of it after the step under way has ended (load and resume)", lambda one: one.still),
        row("pause", lambda one: one.pause),
        row("load", lambda one: one.load),
        row("resume", lambda one: one.resume),
        gap,
        arriving,
        pace,
        *apart,
    ]
