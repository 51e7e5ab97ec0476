"""What a decode step costs, measured while engines run.

Between two reports of progress a running request gets a token in each step. So the time between them, divided
by the tokens that a request got, is the time of a step; with the requests and KV tokens of the engine it
gives one equation of the linear model of `StepCost`. They are weighed by least squares, newer ones more, and
no constant is negative. Pure.
"""

import math
from collections.abc import Mapping
from itertools import combinations
from statistics import median

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.requests import RequestKey

_FORGET = 0.999
"""What an equation's weight is multiplied by with each that follows: after a thousand it counts a third."""
_ENOUGH = 20
"""Equations before which nothing is concluded."""
_PREFILL_SHARE = 0.01
"""Prefill of a token, as part of a step's fixed time: not measured, and assumed for all engines. An 8 B model
on an H200 takes 0.6 %, a small model on CPUs 1 %."""
_TERMS = 3


class CostFit:
    """The equations of one kind of engine, summed up."""

    def __init__(self) -> None:
        self.equations = 0
        self._products = [[0.0] * _TERMS for _ in range(_TERMS)]
        self._sums = [0.0] * _TERMS

    def add(self, step_seconds: float, running: int, kv_tokens: float) -> None:
        """A step of `running` requests with `kv_tokens` in the cache took so long. What makes no sense is
        passed over."""
        if not 0 < step_seconds < math.inf or running < 1 or kv_tokens < 0:
            return
        # In thousands, so that the three terms are of one order of magnitude.
        terms = (1.0, float(running), kv_tokens / 1000)
        # By its inverse, so that relative and not absolute errors count: long steps would drown short ones.
        weight = 1 / step_seconds**2
        for row in range(_TERMS):
            for column in range(_TERMS):
                self._products[row][column] *= _FORGET
                self._products[row][column] += weight * terms[row] * terms[column]
            self._sums[row] = _FORGET * self._sums[row] + weight * terms[row] * step_seconds
        self.equations += 1

    def cost(self) -> StepCost | None:
        """The constants, or None while too little was seen."""
        if self.equations < _ENOUGH:
            return None
        best: tuple[float, list[float]] | None = None
        # With three terms every choice of those that are not zero can be tried.
        for count in range(1, _TERMS + 1):
            for used in combinations(range(_TERMS), count):
                found = self._solve(used)
                if found is not None and (best is None or self._error(found) < best[0] - 1e-12):
                    best = self._error(found), found
        if best is None or best[1][0] <= 0:
            return None
        fixed, per_request, per_thousand = best[1]
        return StepCost(fixed, per_request, per_thousand / 1000, _PREFILL_SHARE * fixed)

    def _solve(self, used: tuple[int, ...]) -> list[float] | None:
        """The constants with all others zero; None where one is negative or they are not determined."""
        rows = [[self._products[row][column] for column in used] + [self._sums[row]] for row in used]
        for place in range(len(rows)):
            pivot = max(range(place, len(rows)), key=lambda row: abs(rows[row][place]))
            rows[place], rows[pivot] = rows[pivot], rows[place]
            if abs(rows[place][place]) <= 1e-9 * self._products[used[place]][used[place]]:
                return None
            for row in range(len(rows)):
                if row != place:
                    factor = rows[row][place] / rows[place][place]
                    rows[row] = [a - factor * b for a, b in zip(rows[row], rows[place], strict=True)]
        constants = [0.0] * _TERMS
        for place, term in enumerate(used):
            constants[term] = rows[place][-1] / rows[place][place]
        return constants if min(constants) >= 0 else None

    def _error(self, constants: list[float]) -> float:
        """The squared error, but for a part that is the same for all constants."""
        squared = sum(
            constants[row] * self._products[row][column] * constants[column]
            for row in range(_TERMS)
            for column in range(_TERMS)
        )
        return squared - 2 * sum(a * b for a, b in zip(constants, self._sums, strict=True))


class MeasuredCosts:
    """What the engines of each pool cost, by their reports of progress."""

    def __init__(self) -> None:
        self._fits: dict[str, CostFit] = {}
        self._seen: dict[int, tuple[float, dict[RequestKey, int]]] = {}
        """Of each engine: when it reported, and the tokens of each request then."""

    def report(
        self, engine: int, pool: str, tokens: Mapping[RequestKey, int], kv_tokens: float, now: float
    ) -> StepCost | None:
        """An engine's running requests have so many tokens, and `kv_tokens` are in its cache. Returns what
        engines of its pool cost, after each some reports; None in between, and while too little is known."""
        at, seen = self._seen.get(engine, (now, {}))
        self._seen[engine] = now, dict(tokens)
        gained = [count - seen[key] for key, count in tokens.items() if key in seen]
        # Where most have come or gone since the last report, the steps were of many sizes.
        if not gained or 2 * len(gained) < max(len(tokens), len(seen)):
            return None
        steps = median(gained)
        if steps <= 0 or now <= at:
            return None
        fit = self._fits.setdefault(pool, CostFit())
        fit.add((now - at) / steps, (len(tokens) + len(seen)) // 2, kv_tokens)
        return fit.cost() if fit.equations % _ENOUGH == 0 else None

    def paused(self, engine: int) -> None:
        """An engine stands still, or is gone: the time until its next report tells nothing."""
        self._seen.pop(engine, None)
