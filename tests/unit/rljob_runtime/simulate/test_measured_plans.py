"""Plans that know what their engines tell alone, on simulated engines: prefill takes what it takes, and only
those that are told of it make the moves that pay."""

from typing import NamedTuple

import pytest

from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.batch import simulate_batch
from rljob_runtime.simulate.outcome import Outcome
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.scheduler import Scheduler
from rljob_runtime.simulate.workload import LengthModel, Workload
from tests.support.simulated.measured_plans import MeasuredPlans

CAP = 16384


class Case(NamedTuple):
    """Batches of responses with 2,000 tokens on average, on 8 engines of 64."""

    prefill: float
    """Seconds for a token, as part of a step's fixed time; a hundredth is what is assumed."""
    prompt: int
    groups: int
    per_request: float
    """Seconds of a step for each request."""
    between: float
    """Deviation of the logarithm of lengths from prompt to prompt."""
    batches: int


class Found(NamedTuple):
    speed: float
    """Times as fast as least in flight."""
    moves: int


def batch(case: Case, seed: int) -> Workload:
    return LengthModel(2000, CAP, case.between, 0.4, prompt_tokens=case.prompt).draw(case.groups, 8, seed)


def run(case: Case, seed: int, scheduler: Scheduler) -> Outcome:
    cost = StepCost(0.008, case.per_request, 4.3e-8, 0.008 * case.prefill)
    shapes = [EngineShape("fast", 64, 8_000_000, cost)] * 8
    return simulate_batch(batch(case, seed), shapes, Physics(report_seconds=1.0), scheduler)


def compared(case: Case, tells_prefill: bool) -> Found:
    seconds, base, moves = 0.0, 0.0, 0
    for seed in range(case.batches):
        found = run(case, seed, MeasuredPlans(Adaptive(CAP), tells_prefill))
        base += run(case, seed, Router(Policy())).wall
        seconds, moves = seconds + found.wall, moves + found.moves
    return Found(base / seconds, moves)


def test_where_prefill_is_expensive_no_move_is_made_that_costs_more_than_it_saves() -> None:
    case = Case(0.1, 512, 96, 2e-5, 0.6, 2)
    assumed, told = compared(case, False), compared(case, True)
    assert assumed.speed < 0.96 and assumed.moves > 20
    assert told.speed > 0.995 and told.moves < 5


def test_where_prefill_is_cheap_moves_are_made_that_pay() -> None:
    case = Case(0.0005, 16384, 24, 2e-4, 1.0, 4)
    assumed, told = compared(case, False), compared(case, True)
    assert told.moves > 1.5 * assumed.moves
    assert told.speed > assumed.speed + 0.005


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
def test_what_a_token_costs_is_found_in_a_batch(share: float) -> None:
    plans = MeasuredPlans(Adaptive(CAP))
    run(Case(share, 1024, 96, 2e-5, 0.6, 1), 0, plans)
    cost = plans.router.book.engines[0].shape.cost
    assert cost.per_prefill_token == pytest.approx(0.008 * share, rel=0.2)
