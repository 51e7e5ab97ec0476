"""The figures of one simulation. Pure."""

from dataclasses import dataclass

import numpy as np

from rljob_runtime.simulate.cluster import Line
from rljob_runtime.simulate.rollout import Rollout


@dataclass(frozen=True)
class Quantiles:
    """Of times, in seconds."""

    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: list[float]) -> "Quantiles":
        if not values:
            return cls(0.0, 0.0, 0.0)
        return cls(*(float(value) for value in np.percentile(values, (50, 99, 100))))


@dataclass(frozen=True)
class Outcome:
    """What one simulated batch or job came to. Times in seconds."""

    wall: float
    samples: int
    """Responses that were complete, or, in a job, trained."""
    tokens: int
    """Their response tokens."""
    idle: float
    """Mean share of the time in which an engine had nothing to do."""
    first_idle: float
    """Share of the time after the first engine was done for good: what is published as "first DP idle"."""
    loading: float
    """Mean share of the time in which an engine stood still for new weights."""
    response: Quantiles
    """From a group's admission, whenever it was begun, to each response's end."""
    group: Quantiles
    """From a group's admission to the end of its last response."""
    moves: int
    moved_tokens: int
    stall: float
    """Engine time spent on moves: KV computed again, or copied."""
    pushed_out: int
    """Requests that lost their place in a full KV cache."""
    restarts: int
    wasted_tokens: int
    """Response tokens dropped by restarts."""
    busy: tuple[float, ...]
    """Of each engine."""
    lines: tuple[Line, ...]
    """What each engine ran over time."""
    steps: tuple[float, ...] = ()
    """When each training step ended."""

    oldest: int = 0
    """Age of the oldest group when it was trained, in weight versions."""

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.wall if self.wall else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.wall if self.wall else 0.0


def outcome(
    rollout: Rollout, wall: float, samples: int, tokens: int, steps: tuple[float, ...] = (), oldest: int = 0
) -> Outcome:
    """The figures at a simulation's end, `wall` seconds after its begin."""
    cluster, tally = rollout.cluster, rollout.tally
    cluster.settle()
    whole = wall or 1.0
    return Outcome(
        wall=wall,
        samples=samples,
        tokens=tokens,
        idle=float(cluster.seconds("idle").mean()) / whole,
        first_idle=1.0 - float(cluster.seconds("last_busy").min()) / whole,
        loading=float(cluster.seconds("loading").mean()) / whole,
        response=Quantiles.of(tally.response_seconds),
        group=Quantiles.of(tally.group_seconds),
        moves=tally.moves,
        moved_tokens=tally.moved_tokens,
        stall=tally.stall_seconds,
        pushed_out=cluster.pushed_out,
        restarts=tally.restarts,
        wasted_tokens=tally.wasted_tokens,
        busy=tuple(cluster.seconds("busy").tolist()),
        lines=tuple(cluster.lines()),
        steps=steps,
        oldest=oldest,
    )
