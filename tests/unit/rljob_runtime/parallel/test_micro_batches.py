"""Micro-batch plans for cases that can be checked by eye."""

import time

import pytest

from rljob_runtime.parallel.micro_batches import (
    Item,
    MicroBatch,
    SampleTooLong,
    plan_micro_batches,
)
from tests.support.imbalance import planned_imbalance

CASES = [
    # lengths, cap, ranks, token counts of each rank's micro-batches
    pytest.param([], 10, 2, [[], []], id="nothing to train"),
    pytest.param([5], 10, 1, [[5]], id="one sample"),
    pytest.param([5], 10, 2, [[5], [0]], id="a rank without work takes part"),
    pytest.param([10, 10, 10], 10, 1, [[10, 10, 10]], id="each at the cap"),
    pytest.param([4, 4, 2, 2], 6, 1, [[6, 6]], id="fills"),
    pytest.param([6, 5, 4, 3, 2, 1], 30, 2, [[11], [10]], id="balanced, not packed tight"),
    pytest.param([9, 1, 9, 1], 10, 2, [[10], [10]], id="long with short"),
    pytest.param([1, 2, 3, 4, 10], 20, 2, [[10], [10]], id="the longest are dealt first"),
    pytest.param([3, 3, 2, 2, 2], 6, 2, [[6], [6]], id="what fills two exactly"),
    pytest.param([33, 32, 33, 1], 64, 2, [[33, 32], [33, 1]], id="alike in each row"),
    pytest.param([4, 4, 4, 4, 5, 5, 5], 9, 2, [[9, 8], [9, 5]], id="two rows hold it"),
    pytest.param([7, 6, 3, 2, 2], 10, 2, [[10], [10]], id="first fit finds room where even loads find none"),
    pytest.param([0, 0, 3], 5, 2, [[3], [0]], id="samples without tokens"),
    pytest.param([8, 6, 4, 2], 8, 2, [[8, 2], [6, 4]], id="long with short, twice"),
]


@pytest.mark.parametrize(("lengths", "cap", "ranks", "expected"), CASES)
def test_plan(lengths: list[int], cap: int, ranks: int, expected: list[list[int]]) -> None:
    plan = plan_micro_batches([Item(0, i, length) for i, length in enumerate(lengths)], cap, ranks)
    assert [[sum(lengths[i] for i in batch) for batch in rank] for rank in plan] == expected


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_sample_above_the_cap_is_named(ranks: int) -> None:
    with pytest.raises(SampleTooLong) as caught:
        plan_micro_batches([Item(7, 0, 20), Item(8, 3, 65)], 64, ranks)
    assert str(caught.value) == (
        "sample 3 of prompt 8 has 65 tokens, above spec.training.parallel.maxTokensPerMicroBatch (64): "
        "raise it, or lower spec.training.rollout.maxResponseTokens"
    )


def items(lengths: list[int]) -> list[Item]:
    return [Item(0, index, length) for index, length in enumerate(lengths)]


def test_the_costliest_sample_sets_the_pace_of_one_row_only() -> None:
    """The long sample's row takes 90 whatever else is in it, so the other rank is filled up to 90 too. Level
    micro-batches would be 90, 56, 56 and 38: 146 for the two rows instead of 126."""
    lengths, costs = [30, 10, 10, 10, 10, 10, 10, 10, 10], [90, 18, 18, 18, 18, 18, 20, 20, 20]
    plan = plan_micro_batches(items(lengths), 50, 2, costs)
    assert [[sum(costs[index] for index in batch) for batch in rank] for rank in plan] == [[90, 36], [78, 36]]


def test_another_row_only_where_it_saves_more_than_a_pass_costs() -> None:
    lengths, costs = [8, 8, 1, 1], [100.0, 100.0, 1.0, 40.0]
    assert [len(rank) for rank in plan_micro_batches(items(lengths), 10, 2, costs)] == [1, 1]


def test_another_row_that_saves_little_more_than_a_pass_costs() -> None:
    """In one row both samples of 5 are in one micro-batch, which takes 50. Two rows take 43 without their
    passes, and none can take less than the even share, 42."""
    lengths = [3, 3, 4, 5, 5]
    costs = [length * length for length in lengths]
    assert len(plan_micro_batches(items(lengths), 10, 2, costs, pass_cost=6.0)[0]) == 2
    assert len(plan_micro_batches(items(lengths), 10, 2, costs, pass_cost=8.0)[0]) == 1


def test_a_samples_cost_decides_and_its_tokens_fit() -> None:
    lengths, costs = [6, 6, 3, 3], [10.0, 1.0, 1.0, 10.0]
    plan = plan_micro_batches(items(lengths), 9, 2, costs)
    assert sorted(map(tuple, plan)) == [((0, 2),), ((1, 3),)]


@pytest.mark.parametrize(
    ("lengths", "micro_batches"),
    [
        pytest.param([51] * 4096, 512, id="just above half"),
        pytest.param([34] * 4096, 256, id="just above a third"),
        pytest.param([51] * 4096 + [1] * 4096, 512, id="just above half, and one token"),
        pytest.param([45, 57] * 2048, 384, id="two that do not go together"),
    ],
)
def test_samples_of_which_few_go_beside_each_other(lengths: list[int], micro_batches: int) -> None:
    """Their tokens alone would go into far fewer rows. To try every number in between takes seconds of the
    processor, and with twice the samples four times as many."""
    began = time.process_time()
    plan = plan_micro_batches(items(lengths), 100, 8)
    assert time.process_time() - began < 0.7
    assert [len(rank) for rank in plan] == [micro_batches] * 8


@pytest.mark.parametrize(
    ("lengths", "cap", "ranks", "costs", "expected"),
    [
        pytest.param([], 9, 2, None, [[], []], id="nothing to train"),
        pytest.param([9, 5, 4], 9, 2, None, [[(0,)], [(1, 2)]], id="one micro-batch each"),
        pytest.param([9, 3, 3, 3, 9], 9, 3, None, [[(0,)], [(4,)], [(1, 2, 3)]], id="counts are equal"),
        pytest.param([9, 9, 9], 9, 2, [2, 1, 1], [[(0,)], [(1,), (2,)]], id="counts differ"),
        pytest.param([2, 4], 9, 2, None, [[(1,)], [(0,)]], id="dealt, as packing would leave a rank without"),
        pytest.param([4], 9, 3, None, [[(0,)], [], []], id="ranks without work have none"),
        pytest.param([3] * 7, 9, 1, None, [[(0, 3, 6), (1, 4), (2, 5)]], id="none is nearly empty"),
        pytest.param([5, 4, 4, 3, 2], 9, 1, None, [[(0, 1), (2, 3, 4)]], id="level only within the cap"),
    ],
)
def test_apart(
    lengths: list[int], cap: int, ranks: int, costs: list[int] | None, expected: list[list[MicroBatch]]
) -> None:
    assert plan_micro_batches(items(lengths), cap, ranks, costs, in_step=False) == expected


def test_ranks_that_wait_once_count_their_passes() -> None:
    """Dealt first, one rank gets [5, 5] and one [9]: 10 tokens in two passes. With dear passes the other way
    around is better."""
    plan = plan_micro_batches(items([5, 5, 9]), 9, 2, pass_cost=100.0, in_step=False)
    assert [len(rank) for rank in plan] == [1, 2]


@pytest.mark.parametrize("in_step", [True, False])
def test_passes_that_cost_far_more_than_their_samples(in_step: bool) -> None:
    plan = plan_micro_batches(items([1] * 1000), 1, 2, [1.0] * 1000, 1e6, in_step)
    assert [len(rank) for rank in plan] == [500, 500]


@pytest.mark.parametrize(
    ("plan", "in_step", "expected"),
    [
        pytest.param([[(0,), (1,)], [(2,), (3,)]], True, 1.0, id="even rows"),
        pytest.param([[(0,), (3,)], [(1,), (2,)]], True, 6 / 4, id="uneven rows"),
        pytest.param([[(0,), (3,)], [(1,), (2,)]], False, 1.0, id="even sums"),
        pytest.param([[(0,), (2,)], [(3,), (1,)]], False, 6 / 4, id="uneven sums"),
        pytest.param([[], []], True, 1.0, id="no work"),
        pytest.param([[(0, 1, 2, 3)], []], False, 2.0, id="one rank has all"),
    ],
)
def test_planned_imbalance(plan: list[list[MicroBatch]], in_step: bool, expected: float) -> None:
    assert planned_imbalance(plan, [3.0, 1.0, 3.0, 1.0], in_step) == pytest.approx(expected)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="0 ranks: there must be one or more"):
        plan_micro_batches(items([1]), 9, 0)
    with pytest.raises(ValueError, match="micro-batches of 0 tokens: there must be room for one or more"):
        plan_micro_batches(items([0]), 0, 1)
    with pytest.raises(ValueError, match="sample 1 of prompt 0 has -1 tokens"):
        plan_micro_batches(items([1, -1]), 9, 1)
    with pytest.raises(ValueError, match="2 samples have 1 costs"):
        plan_micro_batches(items([1, 1]), 9, 1, [1.0])
    with pytest.raises(ValueError, match="the cost of item 1 is nan"):
        plan_micro_batches(items([1, 1]), 9, 1, [1.0, float("nan")])
