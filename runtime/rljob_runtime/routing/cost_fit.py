"""What a decode step costs, measured while engines run.

Between two reports of progress a running request gets a token in each step. So the time between them, divided
by the tokens that a request got, is the time of a step; with the requests and KV tokens of the engine it
gives one equation of the linear model of `StepCost`. They are weighed by least squares, newer ones more, and
no constant is negative. Engines of a pool have the same constants, but for a factor of each (`slowness`).
Pure.
"""

import math
from collections.abc import Iterable, Mapping
from statistics import median

import numpy as np

from rljob_runtime.least_squares import fit_nonnegative
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.requests import RequestKey
from rljob_runtime.routing.slowness import Slowness

_FORGET = 0.999
"""What an equation's weight is multiplied by with each that follows: after a thousand it counts a third."""
_ENOUGH = 20
"""Equations before which nothing is concluded."""
_PREFILL_SHARE = 0.01
"""Prefill of a token, as part of a step's fixed time: not measured, and assumed for all engines. An 8 B model
on an H200 takes 0.6 %, a small model on CPUs 1 %."""
UNMEASURED = StepCost(fixed=0.01, per_prefill_token=_PREFILL_SHARE * 0.01)
"""What an engine is taken for before: a step of any length, but no move for nothing."""
_TERMS = 3
"""Constants of `StepCost` that are fitted: for a step, for a request of it, for a token in the cache."""


class CostFit:
    """The equations of one kind of engine, summed up."""

    def __init__(self) -> None:
        self.equations = 0
        # The triangle of a QR decomposition has the same least squares as all rows that it was made of: the
        # terms, and in the last column what they add up to.
        self._triangle = np.zeros((_TERMS + 1, _TERMS + 1))
        self._rows: list[list[float]] = []
        """Equations that are not in the triangle yet: to decompose twenty takes as long as one."""

    def add(self, step_seconds: float, running: int, kv_tokens: float) -> None:
        """A step of `running` requests with `kv_tokens` in the cache took so long. What makes no sense is
        passed over."""
        if not 0 < step_seconds < math.inf or running < 1 or not 0 <= kv_tokens < math.inf:
            return
        # Divided by its seconds, so that relative and not absolute errors count: long steps would drown short
        # ones.
        self._rows.append([1.0 / step_seconds, running / step_seconds, kv_tokens / step_seconds, 1.0])
        self.equations += 1
        if len(self._rows) == _ENOUGH:
            self._sum_up()

    def cost(self) -> StepCost | None:
        """The constants, or None while too little was seen."""
        if self.equations < _ENOUGH:
            return None
        self._sum_up()
        found = fit_nonnegative(self._triangle[:, :_TERMS], self._triangle[:, _TERMS]).coefficients
        fixed, per_request, per_kv_token = map(float, found)
        if fixed <= 0:
            return None
        return StepCost(fixed, per_request, per_kv_token, _PREFILL_SHARE * fixed)

    def _sum_up(self) -> None:
        count = len(self._rows)
        if count == 0:
            return
        # An error's weight is that of its square.
        weights = math.sqrt(_FORGET) ** np.arange(count, -1, -1.0)
        rows = np.array(self._rows) * weights[1:, None]
        self._triangle = np.linalg.qr(np.vstack([weights[0] * self._triangle, rows])).R
        self._rows.clear()


class MeasuredCosts:
    """What the engines of each pool cost, by their reports of progress."""

    def __init__(self) -> None:
        self._fits: dict[str, CostFit] = {}
        self._costs: dict[str, StepCost] = {}
        """What an ordinary engine of each pool costs, as told last."""
        self._slowness: dict[str, Slowness] = {}
        self._seen: dict[int, tuple[float, dict[RequestKey, int]]] = {}
        """Of each engine: when it reported, and the tokens of each request then."""

    def report(
        self, engine: int, pool: str, tokens: Mapping[RequestKey, int], kv_tokens: float, now: float
    ) -> StepCost | None:
        """An engine's running requests have so many tokens, and `kv_tokens` are in its cache. Returns what
        an ordinary engine of its pool costs, after each some reports; None in between, and while too little
        is known."""
        at, seen = self._seen.get(engine, (now, {}))
        self._seen[engine] = now, dict(tokens)
        gained = [count - seen[key] for key, count in tokens.items() if key in seen]
        # Where most have come or gone since the last report, the steps were of many sizes.
        if not gained or 2 * len(gained) < max(len(tokens), len(seen)):
            return None
        steps = median(gained)
        if steps <= 0 or now <= at:
            return None
        return self._measured(engine, pool, (now - at) / steps, (len(tokens) + len(seen)) // 2, kv_tokens)

    def _measured(
        self, engine: int, pool: str, step_seconds: float, running: int, kv_tokens: float
    ) -> StepCost | None:
        fit, slowness = self._fits.setdefault(pool, CostFit()), self._slowness.setdefault(pool, Slowness())
        if (known := self._costs.get(pool)) is not None:
            slowness.add(engine, step_seconds / known.step(running, kv_tokens))
        fit.add(step_seconds / slowness.of(engine), running, kv_tokens)
        cost = fit.cost() if fit.equations % _ENOUGH == 0 else None
        if cost is not None:
            self._costs[pool] = cost
        return cost

    def slowness(self, pool: str, engines: Iterable[int]) -> dict[int, float]:
        """How many times as long as an ordinary engine of the pool each of these takes, which are all that
        the pool has."""
        found, numbers = self._slowness.setdefault(pool, Slowness()), list(engines)
        found.compare(numbers)
        return {number: found.of(number) for number in numbers}

    def paused(self, engine: int) -> None:
        """An engine stands still, or is gone: the time until its next report tells nothing."""
        self._seen.pop(engine, None)
