"""What a decode step costs, from the attempts that a run recorded.

An attempt is a response's stay on one engine. Its duration is the sum of the steps in it, and each step costs
a fixed part, a part for each request that ran beside, and a part for each of their KV tokens; prefills of
requests that began meanwhile come on top, by their tokens and by the steps that had any: such a step has no
captured graph. Requests that began within a step are prefilled in one. How many ran beside is known from the
other attempts on the engine; their tokens are taken to come evenly over each attempt. The constants are a
non-negative least-squares fit of the seconds for a token, long attempts with more weight. Steps are longer
where more runs, so that a mean over steps needs the constants that it is to find: a few rounds are made.
Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.least_squares import explained, fit_nonnegative
from rljob_runtime.routing.cost import StepCost

Floats = NDArray[np.float64]

_ROUNDS = 6
"""Fits, each with the density of steps that the last one gives; the first takes steps for equally long."""
_FEWEST = 10
"""Attempts that a fit needs: twice as many as there are constants."""


@dataclass(frozen=True)
class Attempt:
    """One stay on one engine. Times in seconds."""

    begin: float
    end: float
    tokens: int
    """Response tokens generated in it."""
    earlier: int
    """Tokens that were prefilled at its begin: prompt, and response so far."""
    counts: bool = True
    """Whether constants are fitted to it; if not, it only ran beside others."""


@dataclass(frozen=True)
class EngineFit:
    """The constants of one kind of engine."""

    cost: StepCost
    admission: float
    """Seconds of a step with a prefill besides the prefill's tokens."""
    r_squared: float
    """Share of the variance of the attempts' durations that they explain."""
    attempts: int
    timeless: int = 0
    """Attempts that are left out: by their times, they ended when they began, or before."""


class _Engine:
    """One engine's attempts, which take time, and what ran on it between any two of their begins and ends."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        begins = np.array([each.begin for each in attempts])
        ends = np.array([each.end for each in attempts])
        self.seconds = ends - begins
        self.tokens = np.array([each.tokens for each in attempts], dtype=float)
        self.counts = np.array([each.counts for each in attempts], dtype=bool)
        earlier = np.array([each.earlier for each in attempts], dtype=float)
        times, places = np.unique(np.concatenate([begins, ends]), return_inverse=True)
        self._first, self._last = places[: len(attempts)], places[len(attempts) :]
        self._widths = np.diff(times)
        self._running = self._sums(np.ones_like(self.tokens))
        # A line for each attempt, slope * time + level, and their sums in the middle of each stretch.
        slopes = self.tokens / self.seconds
        middles = (times[1:] + times[:-1]) / 2 - times[0]
        levels = earlier - slopes * (begins - times[0])
        self._kv = self._sums(levels) + self._sums(slopes) * middles
        order = np.argsort(begins, kind="stable")
        filled = np.concatenate([[0.0], np.cumsum(earlier[order])])
        # Begun before this one's end, less begun before its begin: its own prefill is among them.
        self._prefilled = (
            filled[np.searchsorted(begins[order], ends, side="left")]
            - filled[np.searchsorted(begins[order], begins, side="left")]
        )
        steps, own = _prefill_steps(begins[order], (self.seconds / np.maximum(self.tokens, 1))[order])
        place = np.empty_like(order)
        place[order] = own
        self._admissions = np.searchsorted(steps, ends, side="left") - place

    def features(self, cost: StepCost) -> Floats:
        """For each attempt, by its tokens: 1, the requests and the KV tokens of its mean step, the tokens
        that were prefilled in its time, and the steps that did. Steps are as dense as `cost` says: where more
        runs, fewer are made in a second."""
        step = cost.fixed + cost.per_request * self._running + cost.per_kv_token * self._kv
        # Where nothing runs no steps are made, and a step without a fixed part would take no time.
        steps = np.where(self._running > 0.5, self._widths / np.maximum(step, 1e-12), 0.0)
        made = np.maximum(self._over(steps), 1e-12)
        return np.column_stack(
            [
                np.ones_like(made),
                self._over(steps * self._running) / made,
                self._over(steps * self._kv) / made,
                self._prefilled / np.maximum(self.tokens, 1),
                self._admissions / np.maximum(self.tokens, 1),
            ]
        )

    def _sums(self, values: Floats) -> Floats:
        """For each stretch the sum of a value of the attempts that run in it."""
        changes = np.zeros(len(self._widths) + 1)
        np.add.at(changes, self._first, values)
        np.add.at(changes, self._last, -values)
        return np.cumsum(changes)[:-1]

    def _over(self, values: Floats) -> Floats:
        """For each attempt the sum of a value over its stretches."""
        total = np.concatenate([[0.0], np.cumsum(values)])
        found: Floats = total[self._last] - total[self._first]
        return found


def fit_engines(engines: Sequence[Sequence[Attempt]]) -> EngineFit | None:
    """The constants that fit the attempts of these engines, which are alike; None where there are too few
    attempts of more than a token to fit anything. Where attempts all ran beside equally many, the parts of a
    step cannot be told apart."""
    # One without time has no seconds for a token, and would count as a KV cache that grows without end.
    timed = [[each for each in attempts if each.end > each.begin] for attempts in engines]
    timeless = sum(map(len, engines)) - sum(map(len, timed))
    known = [_Engine(attempts) for attempts in timed if attempts]
    if not known:
        return None
    tokens = np.concatenate([engine.tokens for engine in known])
    seconds = np.concatenate([engine.seconds for engine in known])
    # An attempt of a token is mostly prefill and rounding.
    kept = (tokens > 1) & np.concatenate([engine.counts for engine in known])
    if kept.sum() < _FEWEST:
        return None
    # Seconds for a token, and their noise falls with the root of the tokens that they are a mean of.
    targets, weights = (seconds / np.maximum(tokens, 1))[kept], np.sqrt(tokens[kept])
    cost = StepCost(fixed=1.0)
    for _ in range(_ROUNDS):
        features = np.concatenate([engine.features(cost) for engine in known])[kept]
        fit = fit_nonnegative(features * weights[:, None], targets * weights)
        fixed, request, kv, prefill, admission = (float(value) for value in fit.coefficients)
        cost = StepCost(fixed, request, kv, prefill)
    predicted = features @ fit.coefficients * tokens[kept]
    return EngineFit(cost, admission, explained(seconds[kept], predicted), int(kept.sum()), timeless)


def _prefill_steps(begins: Floats, step_seconds: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """When requests were prefilled that begin at these instants, in ascending order, the begin of the first
    one for each step; and the step of each. `step_seconds`: of each request's own steps, by their mean."""
    steps: list[float] = []
    own = np.empty(len(begins), dtype=np.int64)
    until = -np.inf
    for number, (begin, seconds) in enumerate(zip(begins.tolist(), step_seconds.tolist(), strict=True)):
        if begin > until:
            steps.append(begin)
            until = begin + seconds
        own[number] = len(steps) - 1
    return np.array(steps), own
