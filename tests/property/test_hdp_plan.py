"""What every plan of shared passes must keep, and that no order of events dead-locks it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.parallel.cost_model import CostModel
from rljob_runtime.parallel.hdp_plan import Plan, PlannedBatch, plan_hybrid, plan_static
from tests.support.depth import examples
from tests.support.shared_passes import check, largest, run

CAP = 64
COSTS = st.builds(
    CostModel,
    per_pass=st.sampled_from([0.0, 0.01, 1.0]),
    per_token=st.sampled_from([0.0, 0.001]),
    per_square=st.sampled_from([0.0, 1e-6, 1e-4]),
    shared_pass=st.sampled_from([(0.0,), (0.0, 0.002), (0.0, 0.001, 0.5)]),
    shared_token=st.sampled_from([(0.0,), (0.0, 1e-4, 1e-3, 1e-2)]),
)
WORLDS = st.integers(1, 9)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], int]:
    """Lengths that the ranks hold, and how many ranks there are."""
    world = draw(WORLDS)
    length = st.one_of(st.integers(1, CAP), st.integers(1, CAP * largest(world)))
    return draw(st.lists(length, max_size=40)), world


@given(batches(), COSTS)
def test_every_sample_once_and_groups_agree(batch: tuple[list[int], int], cost: CostModel) -> None:
    lengths, world = batch
    plan = plan_hybrid(lengths, world, CAP, cost)
    check(plan, lengths, world, CAP)
    assert run(plan.ranks, random.Random(0)) == 0


@given(batches(), COSTS)
def test_never_slower_than_one_degree_for_all(batch: tuple[list[int], int], cost: CostModel) -> None:
    lengths, world = batch
    plan = plan_hybrid(lengths, world, CAP, cost)
    for degree in (1, 2, 4, 8):
        if degree <= world and all(-(-n // (2 * degree)) * 2 <= CAP for n in lengths):
            static = plan_static(lengths, world, CAP, cost, degree)
            check(static, lengths, world, CAP)
            assert plan.seconds <= static.seconds


@given(batches(), COSTS)
def test_the_predicted_seconds_are_what_running_it_takes(
    batch: tuple[list[int], int], cost: CostModel
) -> None:
    """Each rank starts a pass when all of its group are there."""
    lengths, world = batch
    plan = plan_hybrid(lengths, world, CAP, cost)
    ends = [0.0] * world
    for each in sorted(plan.passes, key=lambda each: -each.degree):
        group = slice(each.first, each.first + each.degree)
        seconds = cost.seconds([lengths[index] for index in each.samples], each.degree)
        ends[group] = [max(ends[group]) + seconds] * each.degree
    assert plan.seconds == pytest.approx(max(ends), abs=1e-6)


@given(batches(), COSTS)
def test_equal_inputs_give_equal_plans(batch: tuple[list[int], int], cost: CostModel) -> None:
    lengths, world = batch
    plan, again = (plan_hybrid(list(lengths), world, CAP, cost) for _ in range(2))
    assert plan == again
    assert plan.digest() == again.digest()


def random_plan(world: int, draw: random.Random) -> Plan:
    lengths = [
        min(CAP * largest(world) * 3 // 4, 1 + int(draw.lognormvariate(3, 1.2)))
        for _ in range(draw.randrange(1, 40))
    ]
    return plan_hybrid(lengths, world, CAP, CostModel(0.01, 0.001, 1e-5, (0.0, 0.002), (0.0, 1e-5)))


@pytest.mark.parametrize(("world", "plans"), [(8, 1200), (3, 200), (5, 200), (6, 200), (7, 200)])
def test_random_plans_run_to_the_end(world: int, plans: int) -> None:
    draw = random.Random(world)
    shared = 0
    for _ in range(examples(plans)):
        plan = random_plan(world, draw)
        shared += any(each.degree > 1 for each in plan.passes)
        assert run(plan.ranks, draw) == 0
    # Plans without a shared pass could not dead-lock in any order.
    assert shared > examples(plans) / 2


def test_many_of_them_would_not_with_the_passes_of_a_rank_in_any_order() -> None:
    draw = random.Random(8)
    plans = [random_plan(8, draw) for _ in range(100)]
    shuffled = ([draw.sample(passes, len(passes)) for passes in plan.ranks] for plan in plans)
    assert sum(run(ranks, draw) > 0 for ranks in shuffled) > 30


def test_the_model_of_running_sees_a_dead_lock() -> None:
    """Two ranks that begin with different shared passes wait for each other, and rank 0 runs on alone."""
    one, other, alone = (PlannedBatch(0, 2, (0,)), PlannedBatch(0, 2, (1,)), PlannedBatch(0, 1, (2,)))
    assert run([[alone, one, other], [other, one]], random.Random(0)) == 4
