"""Plans that know what their engines tell alone, on simulated engines: prefill takes what it takes, and they
make the moves that pay, whether they are told of it or see what moves took."""

from typing import NamedTuple

import numpy as np
import pytest

from rljob_runtime.groups.staleness import Bound
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.batch import simulate_batch
from rljob_runtime.simulate.job import JobModel, simulate_job
from rljob_runtime.simulate.measured_plans import MeasuredPlans
from rljob_runtime.simulate.outcome import Outcome
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.scheduler import Scheduler
from rljob_runtime.simulate.workload import LengthModel, Workload

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


@pytest.mark.parametrize(("tells", "moves"), [(True, 10), (False, 30)], ids=["told", "not told"])
def test_where_prefill_is_expensive_no_move_is_made_that_costs_more_than_it_saves(
    tells: bool, moves: int
) -> None:
    """But for those by which it is measured."""
    found = compared(Case(0.1, 512, 96, 2e-5, 0.6, 6), tells)
    assert found.speed > 0.995 and found.moves < moves


@pytest.mark.parametrize("tells", [True, False], ids=["told", "not told"])
def test_where_prefill_is_cheap_moves_are_made_that_pay(tells: bool) -> None:
    found = compared(Case(0.0005, 16384, 24, 2e-4, 1.0, 4), tells)
    assert found.moves > 20
    assert found.speed > 1.01


def in_halves(prompt: int, seed: int) -> Workload:
    """Two of the four responses to each of 64 prompts are short, and two are long."""
    r = np.random.default_rng(seed)
    lengths = np.where(np.arange(4) % 2 == 0, r.integers(5, 50, (64, 4)), r.integers(2700, 8192, (64, 4)))
    return Workload(lengths, np.full(64, prompt), np.arange(64))


@pytest.mark.parametrize(
    ("prefill", "prompt", "bound", "speed"),
    [
        pytest.param(0.125, 150, None, 0.99, id="a batch"),
        pytest.param(0.125, 16, None, 0.99, id="short prompts"),
        pytest.param(0.125, 1, None, 0.99, id="prompts that tell next to nothing: moves do"),
        pytest.param(0.5, 1, None, 0.99, id="the same, and dearer"),
        pytest.param(0.125, 150, 0, 1.02, id="steps"),
        pytest.param(0.125, 150, 1, 0.99, id="steps ahead of the trainer"),
        pytest.param(0.0125, 150, None, 1.03, id="moves that pay"),
    ],
)
@pytest.mark.parametrize("tells", [True, False], ids=["told", "not told"])
def test_where_all_begins_together_no_move_costs_more_than_it_saves(
    prefill: float, prompt: int, bound: int | None, speed: float, tells: bool
) -> None:
    """All prompts are prefilled at once, and a response that moves is prefilled for longer than from one
    report to the next, on an engine that has little else to do."""
    cost = StepCost(0.008, 2e-5, 4e-8, 0.008 * prefill)
    shapes, physics = [EngineShape("fast", 32, None, cost)] * 6, Physics(report_seconds=0.5)

    def seconds(scheduler: Scheduler, seed: int) -> float:
        work = in_halves(prompt, seed)
        if bound is None:
            return simulate_batch(work, shapes, physics, scheduler).wall
        model = JobModel(Bound(bound, 32), 2, 30.0, sync_seconds=1.0)
        paused = scheduler.paused if isinstance(scheduler, MeasuredPlans) else lambda: None
        return simulate_job(work, shapes, physics, scheduler, model, paused).wall

    base = sum(seconds(Router(Policy()), seed) for seed in range(3))
    ours = sum(seconds(MeasuredPlans(Adaptive(8192, groups_per_step=32), tells), seed) for seed in range(3))
    assert base / ours > speed


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
def test_what_a_token_costs_is_found_in_a_batch(share: float) -> None:
    plans = MeasuredPlans(Adaptive(CAP))
    run(Case(share, 1024, 96, 2e-5, 0.6, 1), 0, plans)
    cost = plans.router.book.engines[0].shape.cost
    assert cost.per_prefill_token == pytest.approx(0.008 * share, rel=0.2)


def test_the_time_in_which_weights_are_loaded_counts_as_no_step() -> None:
    """As long as eight hundred steps."""
    truth, plans = StepCost(0.01, 0.0, 0.0, 1e-4), MeasuredPlans(Policy())
    work = LengthModel(200, 1000, 0.3, 0.3).draw(80, 4, 0)
    shapes, model = (
        [EngineShape("fast", 16, None, truth)] * 2,
        JobModel(Bound(1, 4), 20, 1.0, sync_seconds=8.0),
    )
    simulate_job(work, shapes, Physics(report_seconds=0.1), plans, model, plans.paused)
    assert plans.shapes[0].cost.step(8) == pytest.approx(truth.step(8), rel=1e-3)
