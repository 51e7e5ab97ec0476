"""Which pool sizes would have made a run faster, with the accelerators that it had: asked of the simulator,
with costs and lengths that the run itself measured.

Guarantees: takes no longer than it is told, whatever the run's size; proposes nothing where the run is unlike
the simulator, or where the gain is not clearly above its noise; a proposal is found on one part of the run's
lengths and its gain measured on others, so that chance does not make it.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rljob_api.job import Spec
from rljob_runtime.routing.choose import policy_of
from rljob_runtime.routing.requests import Action
from rljob_runtime.simulate.assumptions import Engines
from rljob_runtime.simulate.compare import Draw, Spread, best_sizes
from rljob_runtime.simulate.measured_plans import MeasuredPlans
from rljob_runtime.simulate.outcome import Outcome
from rljob_runtime.simulate.site import Site, Sizes
from rljob_runtime.simulate.workload import Workload
from rljob_runtime.trace.forecast.measured_run import MeasuredRun
from rljob_runtime.trace.forecast.workloads import recorded

_RESPONSES = 1200
"""Responses of a simulation, within `_STEPS`."""
_STEPS = (4, 12)
"""Fewest and most steps of a simulation."""
_MISFIT = 0.15
"""How far the simulator may be off for the run as it was, as a logarithm."""
_LEAST_GAIN = 0.05
"""What is worth a change, as a part of today's samples per second."""
_PAIRS = (3, 6)
"""Fewest and most workloads on which a gain is measured."""
_SEARCH = 0.6
"""Part of the time in which sizes are searched; the rest measures the gain of the best."""


@dataclass(frozen=True)
class Proposal:
    """Other pool sizes that the simulator finds faster."""

    now: Sizes
    then: Sizes
    accelerators: int
    """Of both."""
    gain: Spread
    """Of samples per second, as a part of today's: mean over workloads, and its standard error."""
    workloads: int
    simulated: float
    """Samples per second of the run as it was, by the simulator."""
    measured: float
    """The same, as measured."""
    knows_caches: bool = False
    """Whether engines said how much their KV caches hold; else they were taken for large enough."""


@dataclass(frozen=True)
class Unfinished:
    """The time did not suffice."""

    accelerators: int


class OutOfTime(Exception):
    """A simulation was given up."""


@dataclass(frozen=True)
class Clock:
    """When to stop. Times in seconds of `now`."""

    now: Callable[[], float]
    until: float

    def check(self) -> None:
        """Raises `OutOfTime`."""
        if self.now() > self.until:
            raise OutOfTime


class _TimedPlans(MeasuredPlans):
    """Gives up when the time is over: a single simulation may be a long one."""

    def __init__(self, spec: Spec, clock: Clock) -> None:
        super().__init__(policy_of(spec))
        self._clock = clock

    def decide(self, now: float) -> Sequence[Action]:
        self._clock.check()
        return super().decide(now)


@dataclass(frozen=True)
class TimedSite(Site):
    """A site whose simulations are given up when the time is over, and remembered when they are done."""

    clock: Clock
    rates: dict[Sizes, float] = field(default_factory=dict)
    """Samples per second of the last simulation of each sizes."""

    def run(self, workload: Workload) -> Outcome:
        outcome = super().run(workload)
        self.rates[Sizes.of(self.spec)] = outcome.samples_per_second
        return outcome

    def plans(self) -> MeasuredPlans:
        return _TimedPlans(self.spec, self.clock)


def propose(
    spec: Spec, measured: MeasuredRun, seconds: float, now: Callable[[], float] = time.monotonic
) -> Proposal | Unfinished | None:
    """What would have been faster; None where nothing is clearly faster, or the simulator is off for the run
    as it was. `seconds`: how long it may take."""
    began = now()
    each = spec.training.groups_per_step * spec.training.rollout.samples_per_prompt
    steps = max(_STEPS[0], min(_STEPS[1], _RESPONSES // each))
    site = TimedSite(spec, measured.assumptions, steps, Clock(now, began + _SEARCH * seconds))
    sizes, draw = Sizes.of(spec), recorded(measured.trace)
    accelerators = sizes.accelerators(spec)
    unfinished = Unfinished(accelerators)
    try:
        simulated = site.run(draw(site, 0)).samples_per_second
    except OutOfTime:
        return unfinished
    misfit = abs(math.log(simulated / measured.rate))
    if misfit > _MISFIT:
        return None
    whole = _search(site, draw, accelerators, lambda other: told(measured, sizes, other))
    best = best_of(site.rates, sizes)
    if best is None:
        return None if whole else unfinished
    gains = _gains(replace(site, clock=Clock(now, began + seconds)), draw, sizes, best)
    if len(gains) < _PAIRS[0]:
        return unfinished
    if not worth(gains, misfit):
        return None
    gain = Spread(statistics.mean(gains), _standard_error(gains))
    caches = knows_caches(measured.assumptions.engines, (sizes, best))
    return Proposal(sizes, best, accelerators, gain, len(gains), simulated, measured.rate, caches)


def _search(site: TimedSite, draw: Draw, accelerators: int, suits: Callable[[Sizes], bool]) -> bool:
    """Try sizes, which `site.rates` has then; whether the time sufficed."""
    try:
        best_sizes(site, draw, (0,), accelerators, suits)
    except OutOfTime:
        return False
    return True


def _gains(site: TimedSite, draw: Draw, now: Sizes, then: Sizes) -> list[float]:
    """What samples per second gain, on workloads with which nothing was searched, as far as the time goes."""
    gains: list[float] = []
    try:
        for seed in range(1, _PAIRS[1] + 1):
            before, after = (
                sized.run(draw(sized, seed)).samples_per_second
                for sized in (replace(site, spec=sizes.applied(site.spec)) for sizes in (now, then))
            )
            gains.append(after / before - 1)
            if len(gains) >= _PAIRS[0] and statistics.mean(gains) < _LEAST_GAIN:
                # No further workload makes that worth a change.
                break
    except OutOfTime:
        pass
    return gains


def told(measured: MeasuredRun, now: Sizes, other: Sizes) -> bool:
    """Whether a run with the sizes `now` tells how fast others are. No trainer of more than twice the size:
    how it shares its work was not measured that far; and no pool whose engines nobody knows."""
    return (
        (other.trainer <= 2 * now.trainer if measured.knows_trainer else other.trainer == now.trainer)
        and (measured.knows_fast or not other.fast)
        and (measured.knows_heavy or not other.heavy)
    )


def knows_caches(engines: Engines, tried: Sequence[Sizes]) -> bool:
    """Whether engines of the pools that any of these sizes have said how much their KV caches hold."""
    used = [engines.fast] if any(sizes.fast for sizes in tried) else []
    if any(sizes.heavy for sizes in tried):
        used.append(engines.heavy or engines.fast)
    return all(cost.kv_tokens is not None for cost in used)


def best_of(rates: Mapping[Sizes, float], now: Sizes) -> Sizes | None:
    """Of the sizes that were tried the fastest, where it is worth a closer look."""
    best = max(rates, key=lambda sizes: rates[sizes])
    return best if rates[best] > (1 + _LEAST_GAIN) * rates[now] else None


def worth(gains: Sequence[float], misfit: float) -> bool:
    """Whether a gain is clearly there: two standard errors above what is worth a change, and above what the
    simulator is off for the run as it was."""
    return statistics.mean(gains) - 2 * _standard_error(gains) > max(_LEAST_GAIN, misfit)


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))
