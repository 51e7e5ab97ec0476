"""What a decode step costs, and prefill, measured while engines run.

Each mean step between two reports of progress (`mean_steps`) gives one equation of the linear model of
`StepCost`. They are weighed by least squares, newer ones more, and no constant is negative. What a prefilled
token costs is assumed to begin with, and the assumption gives way as far as the equations tell better. All
engines of a pool have the same constants, but for a factor of each (`slowness`). Pure.
"""

import math
from collections.abc import Iterable, Mapping
from statistics import median

import numpy as np

from rljob_runtime.least_squares import Floats, fit_nonnegative
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.mean_steps import MeanStep, MeanSteps
from rljob_runtime.routing.move_times import MoveTimes
from rljob_runtime.routing.slowness import Slowness

_FORGET = 0.999
"""What an equation's weight is multiplied by with each that follows: after a thousand it counts a third."""
_ENOUGH = 20
"""Equations before which nothing is concluded."""
_FEW = 4
"""Equations from which on a pool is compared with another one, until it has enough of its own."""
PREFILL_SHARE = 0.01
"""Prefill of a token, as part of a step of one request, before it is measured. An 8 B model on an H200 takes
0.6 %, a small model on CPUs 1 %."""
_TELLING = 2.0
"""How many times as large as what is assumed the standard error of what equations alone tell of prefill may
be: with a larger one nothing is measured."""
_PREFILL_BOUNDS = 0.0005, 1.0
"""The same part, whatever was measured, at least and at most: an engine that tells nonsense must not make
moves free. A token of prefill takes no longer than a step of one request, which computes one token."""
_SURE = 2.0
"""Standard errors below what equations alone tell of prefill, from which on down it is not certain."""
_LEAST_NOISE = 0.02
"""Standard error of an equation, as part of its step, that is taken for granted."""
UNMEASURED = StepCost(fixed=0.01, per_prefill_token=PREFILL_SHARE * 0.01, assumed=True, measured=False)
"""What an engine is taken for before: a step of any length, but no move for nothing."""
_TERMS, _PREFILL = 4, 3
"""Constants of `StepCost` that are fitted: for a step, for a request of it, for a token in the cache, and for
a token that is prefilled; and which of them that is."""


class CostFit:
    """The equations of one kind of engine, summed up."""

    def __init__(self) -> None:
        self.equations = 0
        self.tells = False
        """Whether the engines tell of prefill at all; else it is no use to wait for what they tell."""
        self._weight = 0.0
        """Of all equations in the triangle together."""
        # The triangle of a QR decomposition has the same least squares as all rows that it was made of: the
        # terms, and in the last column what they add up to.
        self._triangle = np.zeros((_TERMS + 1, _TERMS + 1))
        self._running = self._kv_tokens = 0.0
        """Requests of all equations, and their tokens in the cache; newer ones count more."""
        self._rows: list[list[float]] = []
        """Equations that are not in the triangle yet: to decompose twenty takes as long as one."""

    def add(self, step_seconds: float, running: int, kv_tokens: float, prefilled: float = 0.0) -> None:
        """A step of `running` requests with `kv_tokens` in the cache, beside which so many tokens were
        prefilled, took so long. What makes no sense is passed over."""
        if not 0 < step_seconds < math.inf or running < 1:
            return
        if not (0 <= kv_tokens < math.inf and 0 <= prefilled < math.inf):
            return
        # Divided by its seconds, so that relative and not absolute errors count: long steps would drown short
        # ones.
        self._rows.append([value / step_seconds for value in (1.0, running, kv_tokens, prefilled)] + [1.0])
        self._running = _FORGET * self._running + running
        self._kv_tokens = _FORGET * self._kv_tokens + kv_tokens
        self.equations += 1
        if len(self._rows) == _ENOUGH:
            self._sum_up()

    def cost(self, assumed_share: float = PREFILL_SHARE) -> StepCost | None:
        """The constants, or None while too little was seen. `assumed_share`: what a token of prefill is taken
        for until it is measured, as part of a step of one request."""
        if self.equations < _ENOUGH:
            return None
        self._sum_up()
        free = fit_nonnegative(self._triangle[:, :_TERMS], self._triangle[:, _TERMS]).coefficients
        if self.one(*map(float, free[:_PREFILL])) <= 0:
            return None
        assumption = self._assumed(free, assumed_share)
        rows = np.vstack([self._triangle, assumption])
        found = fit_nonnegative(rows[:, :_TERMS], rows[:, _TERMS]).coefficients
        fixed, per_request, per_kv_token, per_prefill_token = map(float, found)
        if (one := self.one(fixed, per_request, per_kv_token)) <= 0:
            return None
        if fixed + per_request <= 0:
            # Where requests are about as long as one another, what they take may be found of their tokens. A
            # step with next to nothing in the cache takes some time all the same.
            fixed = _LEAST_NOISE * one
        least, most = (share * one for share in _PREFILL_BOUNDS)
        # What equations alone tell of prefill is what of it no other constant can stand for.
        told = abs(self._triangle[_PREFILL, _PREFILL])
        return StepCost(
            fixed, per_request, per_kv_token, min(max(per_prefill_token, least), most),
            assumed=bool(self.tells and _TELLING * told < assumption[_PREFILL]),
        )  # fmt: skip

    def one(self, fixed: float, per_request: float, per_kv_token: float) -> float:
        """Seconds of a step of one request with as many tokens in the cache as there were for each."""
        return fixed + per_request + per_kv_token * self._kv_tokens / max(1.0, self._running)

    def _assumed(self, found: Floats, share: float) -> Floats:
        """The assumption about prefill as one more equation, in which an error as large as itself weighs what
        the others' usual error does; or an error as large as what the others tell for certain, where that is
        more: it may be wrong by a factor of a hundred, and would outweigh them then. `found`: the constants
        without it; `share`: as part of a step of one request."""
        missed = self._triangle @ np.append(found, -1.0)
        noise = max(_LEAST_NOISE, math.sqrt(float(missed @ missed) / self._weight))
        token = share * self.one(*map(float, found[:_PREFILL]))
        told = abs(float(self._triangle[_PREFILL, _PREFILL]))
        surely = float(found[_PREFILL]) - _SURE * noise / told if told else 0.0
        weight = noise / max(token, surely)
        return np.array([0.0, 0.0, 0.0, weight, weight * token])

    def _sum_up(self) -> None:
        count = len(self._rows)
        if count == 0:
            return
        # An error's weight is that of its square.
        weights = math.sqrt(_FORGET) ** np.arange(count, -1, -1.0)
        rows = np.array(self._rows) * weights[1:, None]
        self._triangle = np.linalg.qr(np.vstack([weights[0] * self._triangle, rows])).R
        self._weight = _FORGET**count * self._weight + float((weights[1:] ** 2).sum())
        self._rows.clear()


class MeasuredCosts:
    """What the engines of each pool cost, by their reports of progress."""

    def __init__(self) -> None:
        self._fits: dict[str, CostFit] = {}
        self._costs: dict[str, StepCost] = {}
        """What an ordinary engine of each pool costs, as told last."""
        self._slowness: dict[str, Slowness] = {}
        self._steps = MeanSteps()
        self._moves: dict[str, MoveTimes] = {}
        self._few: dict[str, list[MeanStep]] = {}
        """The steps of each pool while it has too few for constants of its own."""

    def report(
        self,
        engine: int,
        pool: str,
        tokens: Mapping[str, int],
        kv_tokens: float,
        now: float,
        prefilled: int = 0,
    ) -> StepCost | None:
        """What `MeanSteps.report` is told. Returns what an ordinary engine of its pool costs, after each some
        reports; None in between, and while too little is known."""
        fit = self._fits.setdefault(pool, CostFit())
        fit.tells |= prefilled > 0
        told, known = False, self._costs.get(pool)
        if known is not None and not fit.tells:
            # Before anything else is made of these tokens: it is the steps until now that they tell of.
            seconds = known.times(self._slowness_of(pool).of(engine)).step(len(tokens), kv_tokens)
            told = self._times(pool).report(engine, tokens, seconds, self._one(pool, known), now)
        step = self._steps.report(engine, tokens, kv_tokens, prefilled, now)
        cost = None if step is None else self._measured(engine, pool, step)
        if cost is None and told:
            cost = self._costs[pool]
        if cost is not None:
            self._costs[pool] = cost = cost if fit.tells else self._by_moves(pool, cost)
        return cost

    def _measured(self, engine: int, pool: str, step: MeanStep) -> StepCost | None:
        fit, slowness = self._fits[pool], self._slowness_of(pool)
        if (known := self._costs.get(pool)) is not None:
            expected = known.step(step.running, step.kv_tokens) + known.per_prefill_token * step.prefilled
            slowness.add(engine, step.seconds / expected)
        fit.add(step.seconds / slowness.of(engine), step.running, step.kv_tokens, step.prefilled)
        if fit.equations < _ENOUGH:
            few = self._few.setdefault(pool, [])
            few.append(step)
            return self._compared(pool, few)
        self._few.pop(pool, None)
        # What prefill takes is waited for: until then hardly anything moves.
        awaited = known is not None and known.assumed and step.prefilled > 0
        if awaited or fit.equations % _ENOUGH == 0:
            return fit.cost(self._assumed_share(pool))
        return None

    def _compared(self, pool: str, steps: list[MeanStep]) -> StepCost | None:
        """What an engine costs of a pool that has few equations: as one of another pool, times a factor."""
        others = (cost for name, cost in self._costs.items() if name not in self._few)
        other = next(others, None)
        if other is None or len(steps) < _FEW:
            return None
        factor = median(
            step.seconds
            / (other.step(step.running, step.kv_tokens) + other.per_prefill_token * step.prefilled)
            for step in steps
        )
        return other.times(factor)._replace(assumed=True)

    def _by_moves(self, pool: str, cost: StepCost) -> StepCost:
        """The same of engines that tell nothing of prefill."""
        times, assumed = self._times(pool), self._assumed_share(pool)
        least, most = _PREFILL_BOUNDS
        share = min(max(times.share(assumed), least), most)
        return cost._replace(per_prefill_token=share * self._one(pool, cost), assumed=not times.told(assumed))

    def _assumed_share(self, pool: str) -> float:
        """What a token of prefill is taken for before engines of this pool have told, as part of a step of
        one request: what those of another pool have told, since all run the same model."""
        for other, cost in self._costs.items():
            if other != pool and not cost.assumed:
                return cost.per_prefill_token / self._one(other, cost)
        return PREFILL_SHARE

    def _one(self, pool: str, cost: StepCost) -> float:
        """Seconds of a step of one request of an ordinary engine of the pool."""
        return self._fits[pool].one(cost.fixed, cost.per_request, cost.per_kv_token)

    def _slowness_of(self, pool: str) -> Slowness:
        return self._slowness.setdefault(pool, Slowness())

    def _times(self, pool: str) -> MoveTimes:
        return self._moves.setdefault(pool, MoveTimes())

    def known(self, pool: str) -> StepCost | None:
        """What an ordinary engine of the pool costs, as far as known."""
        return self._costs.get(pool)

    def slowness(self, pool: str, engines: Iterable[int]) -> dict[int, float]:
        """How many times as long as an ordinary engine of the pool each of these takes, which are all that
        the pool has."""
        found, numbers = self._slowness_of(pool), list(engines)
        found.compare(numbers)
        return {number: found.of(number) for number in numbers}

    def began(self, engine: int, prefilled: int, now: float) -> None:
        """An engine that has nothing to do, and has prefilled so much in all, is given something."""
        self._steps.began(engine, prefilled, now)

    def given(self, engine: int, pool: str, request: str, kv_tokens: int, now: float) -> None:
        """A request is given to an engine; `kv_tokens`: what it had on another one, with its prompt, and 0 of
        one that begins."""
        self._times(pool).given(engine, request, kv_tokens, now)

    def ended(self, engine: int, pool: str, request: str) -> None:
        """A request has ended on an engine, or left it."""
        self._steps.ended(engine)
        self._times(pool).left(engine, request)

    def paused(self, engine: int, pool: str) -> None:
        """An engine stands still, or is gone: the time until its next report tells nothing."""
        self._steps.paused(engine)
        self._times(pool).paused(engine)
