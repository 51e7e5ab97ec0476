"""What every plan of shared passes must keep, and that no order of events dead-locks it."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.parallel.cost_model import CostModel, padded
from rljob_runtime.parallel.first_fit import first_fit
from rljob_runtime.parallel.hdp_plan import Plan, PlannedBatch, plan_hybrid, plan_static
from rljob_runtime.parallel.loads import members_of
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
def batches(draw: st.DrawFn, worlds: st.SearchStrategy[int] = WORLDS) -> tuple[list[int], int]:
    """Lengths that the ranks hold, and how many ranks there are."""
    world = draw(worlds)
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


def dealt(
    lengths: list[int], world: int, cost: CostModel, degree_of: dict[int, int]
) -> list[list[PlannedBatch]]:
    """What each rank runs by the rule of `hdp_levels` alone, as simply as it can be said: from the largest
    degree down each sample, the longest first, to the group that is free first, packed first-fit."""
    ranks: list[list[PlannedBatch]] = [[] for _ in range(world)]
    ends = [0] * world
    for degree in sorted(set(degree_of.values()), reverse=True):
        constant, room = round(cost.pass_seconds(degree) * 1e9), CAP * degree
        costs = np.rint(cost.sample_seconds(np.array(lengths), degree) * 1e9).astype(int).tolist()
        tokens = padded(np.array(lengths), degree).tolist()
        firsts = range(0, world - degree + 1, degree)
        free, given = [ends[first] for first in firsts], {first: list[int]() for first in firsts}
        for index in sorted(degree_of, key=lambda index: (-lengths[index], index)):
            if degree_of[index] == degree:
                group = free.index(min(free))
                given[firsts[group]].append(index)
                free[group] += costs[index] + constant * tokens[index] // room
        for first, share in ((first, share) for first, share in given.items() if share):
            bins = first_fit(np.array([tokens[index] for index in share], dtype=np.int64), room)
            for members in members_of(bins, int(bins.max()) + 1):
                batch = PlannedBatch(first, degree, tuple(sorted(share[place] for place in members)))
                for rank in range(first, first + degree):
                    ranks[rank].append(batch)
                    ends[rank] += constant + sum(costs[index] for index in batch.samples)
    return ranks


@given(batches(st.one_of(WORLDS, st.sampled_from([31, 64, 100]))), COSTS)
def test_each_sample_goes_to_the_group_that_is_free_first(
    batch: tuple[list[int], int], cost: CostModel
) -> None:
    """Whatever is done to find it fast: with few samples to a group, and with many."""
    lengths, world = batch
    plan = plan_hybrid(lengths, world, CAP, cost)
    degree_of = {index: each.degree for each in plan.passes for index in each.samples}
    assert [list(passes) for passes in plan.ranks] == dealt(lengths, world, cost, degree_of)


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
