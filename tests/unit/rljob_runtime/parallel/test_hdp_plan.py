"""Which ranks share which samples, in examples small enough to check by hand."""

import random

import pytest

from rljob_runtime.parallel.cost_model import CostModel
from rljob_runtime.parallel.hdp_plan import Plan, PlannedBatch, plan_hybrid, plan_static
from rljob_runtime.parallel.micro_batches import SampleTooLong

TOKENS = CostModel(per_pass=0.0, per_token=1.0, per_square=0.0)
"""A second for a token, and nothing else."""


def B(first: int, degree: int, *samples: int) -> PlannedBatch:
    return PlannedBatch(first, degree, samples)


@pytest.mark.parametrize(
    ("lengths", "world", "cap", "planned"),
    [
        # Nothing to share: each rank alone.
        ([8, 8], 2, 16, [[B(0, 1, 0)], [B(1, 1, 1)]]),
        # Two fit one rank's cap, and level what the third takes.
        ([8, 4, 4], 2, 8, [[B(0, 1, 0)], [B(1, 1, 1, 2)]]),
        # Above one rank's cap: two ranks share it, then each goes on alone.
        ([12, 3, 3], 2, 8, [[B(0, 2, 0), B(0, 1, 1)], [B(0, 2, 0), B(1, 1, 2)]]),
        # Within one rank's cap, but it would keep that rank busy long after the others.
        ([16, 2, 2], 2, 16, [[B(0, 2, 0), B(0, 1, 1)], [B(0, 2, 0), B(1, 1, 2)]]),
        # Three ranks: two may share, the third never does.
        ([12, 6], 3, 8, [[B(0, 2, 0)], [B(0, 2, 0)], [B(2, 1, 1)]]),
        # Fewer samples than ranks, none of them worth sharing.
        ([1], 2, 8, [[B(0, 1, 0)], []]),
        ([], 2, 8, [[], []]),
    ],
)
def test_the_plan(lengths: list[int], world: int, cap: int, planned: list[list[PlannedBatch]]) -> None:
    assert [list(batches) for batches in plan_hybrid(lengths, world, cap, TOKENS).ranks] == planned


def test_the_predicted_seconds_are_those_of_the_last_rank() -> None:
    cost = CostModel(per_pass=1.0, per_token=1.0, per_square=0.0)
    # Two ranks share 16 tokens (1 + 8), then each has a pass of 3 (1 + 3).
    assert plan_hybrid([16, 3, 3], 2, 8, cost).seconds == 13.0
    assert plan_hybrid([16, 3, 3], 2, 8, None).seconds == 0.0


def test_sharing_that_costs_more_than_it_gains_is_left() -> None:
    dear = CostModel(per_pass=0.0, per_token=1.0, per_square=0.0, shared_pass=(0.0, 9.0))
    assert plan_hybrid([16, 2, 2], 2, 16, dear) == Plan(((B(0, 1, 0),), (B(1, 1, 1, 2),)), 16.0)


def test_many_long_samples_among_short_ones_are_shared() -> None:
    """More of them than are moved one by one; sharing costs a fifth."""
    lengths = [6400] * 60 + [100] * 1000
    cost = CostModel(per_pass=0.0, per_token=1.0, per_square=0.0, shared_token=(0.0, 0.1))
    plan = plan_hybrid(lengths, 128, 8192, cost)
    assert plan.seconds < 1.15 * (60 * 1.2 * 6400 + 1000 * 100) / 128
    assert {each.degree for each in plan.passes} == {1, 2}


def test_no_more_ranks_share_than_allowed() -> None:
    wide = plan_hybrid([64], 8, 64, TOKENS)
    narrow = plan_hybrid([64], 8, 64, TOKENS, largest_degree=2)
    assert [each.degree for each in wide.passes] == [8]
    assert [each.degree for each in narrow.passes] == [2]
    # Three is no degree: two it is.
    assert plan_hybrid([64], 8, 64, TOKENS, largest_degree=3) == narrow


def test_every_pass_stands_once_in_the_list_of_all() -> None:
    plan = plan_hybrid([12, 3, 3], 2, 8, TOKENS)
    assert plan.passes == (B(0, 2, 0), B(0, 1, 1), B(1, 1, 2))


def test_static_plans_leave_ranks_beyond_the_last_group_idle() -> None:
    plan = plan_static([8, 8, 8, 8], 5, 8, TOKENS, 2)
    assert [len(batches) for batches in plan.ranks] == [1, 1, 1, 1, 0]
    assert all(each.degree == 2 for each in plan.passes)


def test_padding_counts_against_the_cap() -> None:
    # 5 tokens over two ranks are 8 with padding, so that a second sample of 1 (4 with padding) fits no pass
    # of 2 x 5.
    plan = plan_static([5, 1], 2, 5, TOKENS, 2)
    assert sorted(each.samples for each in plan.passes) == [(0,), (1,)]


def test_a_sample_that_no_group_holds_is_named() -> None:
    with pytest.raises(SampleTooLong, match=r"sample 1 has 17 tokens.*2 of 3 ranks.*\(2 x 8\)"):
        plan_hybrid([4, 17], 3, 8, TOKENS)
    with pytest.raises(SampleTooLong, match=r"sample 0 has 9 tokens.*1 of 2 ranks"):
        plan_static([9], 2, 8, TOKENS, 1)
    with pytest.raises(SampleTooLong, match=r"sample 0 has 9 tokens.*1 of 1 ranks.*\(1 x 8\)"):
        plan_hybrid([9, 2], 1, 8, TOKENS)


@pytest.mark.parametrize("lengths", [[4, 0], [4, -1]])
def test_a_sample_without_tokens_is_named(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="sample 1 has"):
        plan_hybrid(lengths, 2, 8, TOKENS)


@pytest.mark.parametrize(
    ("per_token", "told"),
    [
        (float("nan"), "sample 0, of 1 tokens, takes nan seconds"),
        (float("inf"), "sample 0, of 1 tokens, takes inf seconds"),
        (-1.0, "sample 0, of 1 tokens, takes -1 seconds"),
        (1e9, r"sample 1, of 9 tokens, takes 9e\+09 seconds"),
    ],
)
def test_costs_that_no_sample_can_have(per_token: float, told: str) -> None:
    with pytest.raises(ValueError, match=f"{told} by the cost model on 1 rank: a batch takes 0 to"):
        plan_hybrid([1, 9], 2, 9, CostModel(0.0, per_token, 0.0))


def test_a_pass_that_cannot_take_so_long() -> None:
    with pytest.raises(ValueError, match=r"a pass of 1 rank takes nan seconds by the cost model"):
        plan_hybrid([4], 2, 8, CostModel(float("nan"), 0.0, 0.0))


@pytest.mark.parametrize("degree", [0, 3, 8])
def test_a_degree_that_the_world_has_no_group_for(degree: int) -> None:
    with pytest.raises(ValueError, match="power of two of at most 4 ranks"):
        plan_static([4], 4, 8, TOKENS, degree)


@pytest.mark.parametrize(("world", "cap", "largest"), [(0, 8, 1), (2, 0, 1), (2, 8, -1)])
def test_no_ranks_no_cap_no_degree(world: int, cap: int, largest: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        plan_hybrid([4], world, cap, TOKENS, largest_degree=largest)


@pytest.mark.parametrize(
    "other",
    [
        Plan(((B(0, 1, 1),), (B(1, 1, 0),)), 0.0),
        Plan(((B(0, 1, 0), B(0, 1, 1)), ()), 0.0),
        Plan(((B(0, 2, 0, 1),), (B(0, 2, 0, 1),)), 0.0),
        Plan(((B(0, 1, 0),), (B(1, 1, 1),), ()), 0.0),
        Plan(((B(0, 1, 2),), (B(1, 1, 1),)), 0.0),
        Plan(((B(0, 1, 0),), (B(1, 1, 2),)), 0.0),
    ],
)
def test_other_plans_have_other_digests(other: Plan) -> None:
    plan = Plan(((B(0, 1, 0),), (B(1, 1, 1),)), 0.0)
    assert plan.digest() != other.digest()
    assert plan.digest() == Plan(plan.ranks, 1.0).digest()
    assert -(2**63) <= plan.digest() < 2**63


def test_ranks_that_hold_one_token_share_nothing() -> None:
    with pytest.raises(SampleTooLong, match="2 ranks that hold one token each can share no sample"):
        plan_static([1], 2, 1, None, 2)
    with pytest.raises(SampleTooLong, match=r"sample 0 has 2 tokens.*1 of 4 ranks.*\(1 x 1\)"):
        plan_hybrid([2], 4, 1, None)
    assert plan_hybrid([1, 1], 2, 1, None).ranks == (
        (PlannedBatch(0, 1, (0,)),),
        (PlannedBatch(1, 1, (1,)),),
    )


@pytest.mark.parametrize(
    ("world", "cap", "samples", "digest"),
    [
        (3, 600, 200, 1516589576147018142),
        (8, 600, 512, -6627662713323938592),
        (8, 1024, 300, -2723422582111820503),
        (24, 1024, 300, -8117406411552252209),
        (32, 2000, 512, -241766199196452301),
        (128, 700, 512, -7660944870058422599),
        (1024, 4096, 512, -5240498516034877818),
    ],
)
def test_these_batches_have_these_plans(world: int, cap: int, samples: int, digest: int) -> None:
    """On every machine, and however fast the search is made: plans of drawn batches by their digests."""
    draw = random.Random(world)
    top = min(cap * 2, cap * world // 2)
    lengths = [1 + draw.randrange(1 + draw.randrange(top)) for _ in range(samples)]
    cost = CostModel(0.001, 1e-5, 1e-9, (0.0, 0.0005, 0.001), (0.0, 1e-6, 2e-6))
    assert plan_hybrid(lengths, world, cap, cost).digest() == digest
