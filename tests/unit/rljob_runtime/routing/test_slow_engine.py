"""An engine that is slower than the others of its pool gets less, and keeps no response that is long."""

import numpy as np
import pytest

from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.engines.protocol import Request
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.levelling import level
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import EngineShape, RequestKey
from rljob_runtime.routing.roles import choose_heavy
from rljob_runtime.routing.split import Split
from tests.support.simulated.routed import COST, Engines, Routed
from tests.support.simulated.simulated_job import Scenario, SimulatedJob


def length_of(request: Request) -> int:
    """Lognormal, in tokens."""
    random = np.random.default_rng(request.seed)
    return int(np.clip(220 * np.exp(0.9 * random.standard_normal()), 16, 1024))


def step_seconds(slowness: tuple[float, ...], bound: int, adaptive: bool) -> float:
    """Of a step in the steady state."""
    scenario = Scenario(
        steps=16, groups_per_step=16, samples_per_prompt=4, max_staleness=bound, engines=len(slowness),
        slowness=slowness, max_running=64, length_of=length_of, max_response_tokens=1024, train_seconds=2.3,
        policy=lambda: Adaptive(1024, groups_per_step=16) if adaptive else Policy(),
        timing=FakeTiming(0.0045, 6e-5, 5e-6, 0.05),
    )  # fmt: skip
    ended = [step.ended for step in SimulatedJob(scenario).run().steps]
    # With bound 1 steps come in pairs, with bound 2 in threes.
    return (ended[-1] - ended[3]) / (len(ended) - 4)


@pytest.mark.parametrize(
    ("slowness", "bound", "gain"),
    [((1.0, 1.8), 1, 1.1), ((1.0, 1.8), 2, 1.1), ((1.0, 1.0, 1.0, 2.0), 2, 1.2)],
)
def test_training_waits_less_for_a_slow_engine(slowness: tuple[float, ...], bound: int, gain: float) -> None:
    assert step_seconds(slowness, bound, False) > gain * step_seconds(slowness, bound, True)


def slow(site: Engines, number: int, factor: float) -> None:
    engine = site.engines[number]
    engine.shape = engine.shape._replace(cost=engine.shape.cost.times(factor), slowness=factor)


@pytest.mark.parametrize("bound", [1, 2])
def test_what_moves_cost_is_found_where_none_would_pay_by_what_is_assumed(bound: int) -> None:
    """A token of prefill takes a thousandth of a step. The responses of a version begin together, with an
    update, and nothing of that tells it."""
    scenario = Scenario(
        steps=10, groups_per_step=32, samples_per_prompt=8, max_staleness=bound, engines=2,
        slowness=(1.0, 1.4), max_running=256, length_of=length_of, max_response_tokens=1024,
        train_seconds=2.3, timing=FakeTiming(0.0045, 8e-6, 5e-6, 0.05),
        policy=lambda: Adaptive(1024, groups_per_step=32),
    )  # fmt: skip
    cost = SimulatedJob(scenario).run().pool.slots[0].cost
    assert not cost.assumed and cost.per_prefill_token < 1e-3 * cost.step(1)


def test_the_longest_leave_a_slow_engine_together() -> None:
    site = Engines([[50] * 12 + [3000] * 4, [50] * 12])
    assert not level(site.engines, site.remaining)
    slow(site, 0, 2.0)
    moves = level(site.engines, site.remaining)
    assert {move.request for move in moves} == {RequestKey(uid, 0) for uid in range(12, 16)}


def test_quick_engines_are_kept_for_long_responses() -> None:
    """Although another one has the longest already."""
    site = Engines([[9000], [5000], [100]])
    sample = [(each, site.remaining(each)) for engine in site.engines for each in engine.running.values()]
    split = Split(1, 4000.0, 0.0, 0.0)
    assert choose_heavy(split, site.engines, frozenset(), sample) == {0}
    slow(site, 0, 1.5)
    assert choose_heavy(split, site.engines, frozenset(), sample) == {1}


def test_a_slow_engine_has_fewer_requests() -> None:
    routed = Routed(Adaptive(1000))
    for number, slowness in enumerate((2.0, 1.0)):
        routed.router.join(number, EngineShape("fast", 64, None, COST.times(slowness), slowness=slowness))
    routed.dispatch([0], samples=1)
    assert list(routed.where.values()) == [1]
    routed.dispatch(range(1, 30), samples=1)
    on_slow = sum(engine == 0 for engine in routed.where.values())
    assert on_slow == pytest.approx(10, abs=1)
