"""Plans of shared passes for batches unlike those that training meets: small caps, giants among dwarfs, more
ranks than samples."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.parallel.cost_model import CostModel, ModelShape, padded
from rljob_runtime.parallel.first_fit import first_fit
from rljob_runtime.parallel.hdp_plan import plan_hybrid, plan_static
from rljob_runtime.parallel.loads import members_of
from rljob_runtime.parallel.micro_batches import SampleTooLong
from tests.support.shared_passes import check, largest, run

SHAPE = ModelShape(36, 7_570_000_000, 4096, 1024)
WORLDS = (1, 2, 3, 5, 6, 7, 8, 12, 16, 32)


def longest(cap: int, world: int) -> int:
    """The longest sample that all ranks of the largest group hold together, with its padding."""
    degree = largest(world)
    return cap if degree == 1 else max(cap, cap // 2 * 2 * degree)


def lengths_of(name: str, cap: int, world: int) -> list[int]:
    top, draw = longest(cap, world), np.random.default_rng(world)
    return {
        "all alike": [cap // 3] * 50,
        "all at the cap": [cap] * (3 * world),
        "all just above the cap": [min(top, cap + 1)] * world,
        "one giant among dwarfs": [top, *[100] * 200],
        "giants alone": [top] * 3,
        "giants and dwarfs": [top // 2 + 1] * 4 + [120] * 300,
        "halves": [max(1, top >> power) for power in range(20)] * 2,
        "fewer than ranks": [cap] * max(1, world - 1),
        "one token each": [1] * 100,
        "evenly spread": np.linspace(1, top, 97).astype(int).tolist(),
        "no mean": np.clip(100 * (1 + draw.pareto(0.8, 512)), 1, top).astype(int).tolist(),
    }[name]


NAMES = (
    "all alike", "all at the cap", "all just above the cap", "one giant among dwarfs", "giants alone",
    "giants and dwarfs", "halves", "fewer than ranks", "one token each", "evenly spread", "no mean",
)  # fmt: skip


def lower_bound(lengths: list[int], world: int, cap: int, cost: CostModel) -> float:
    """No plan ends before: all work at each sample's cheapest degree, in full passes, spread evenly; the
    slowest sample at its fastest degree."""
    tokens = np.array(lengths)
    work, fastest = np.full(len(tokens), np.inf), np.full(len(tokens), np.inf)
    for degree in (1 << level for level in range(world.bit_length())):
        fits = padded(tokens, degree) <= cap * degree
        seconds = cost.sample_seconds(tokens, degree)
        full = cost.pass_seconds(degree) * tokens / cap
        work = np.where(fits, np.minimum(work, degree * seconds + full), work)
        fastest = np.where(fits, np.minimum(fastest, seconds + cost.pass_seconds(degree)), fastest)
    return max(float(work.sum()) / world, float(fastest.max()))


@pytest.mark.parametrize("cap", [512, 4096, 16383, 32768])
@pytest.mark.parametrize("name", NAMES)
def test_unusual_batches(name: str, cap: int) -> None:
    for world in WORLDS:
        lengths, cost = lengths_of(name, cap, world), CostModel.prior(SHAPE, world)
        plan = plan_hybrid(lengths, world, cap, cost)
        check(plan, lengths, world, cap)
        assert run(plan.ranks, random.Random(world)) == 0
        for degree in (1 << level for level in range(world.bit_length())):
            if (padded(np.array(lengths), degree) <= cap * degree).all():
                assert plan.seconds <= plan_static(lengths, world, cap, cost, degree).seconds
        # In worlds that are no power of two, up to half of the ranks are in no group of the largest degree.
        bound = lower_bound(lengths, world, cap, cost)
        assert plan.seconds <= 2 * (bound + cost.pass_seconds(world))


@given(st.integers(1, 6), st.sampled_from(WORLDS), st.lists(st.integers(1, 60), max_size=30))
def test_small_caps(cap: int, world: int, lengths: list[int]) -> None:
    """Padding is a large part of samples as short as these. Either all fit, or one is named that does not."""
    cost = CostModel(0.01, 0.001, 1e-6, (0.0, 0.002), (0.0, 1e-5))
    try:
        plan = plan_hybrid(lengths, world, cap, cost)
    except SampleTooLong:
        assert max(lengths) > longest(cap, world)
        return
    check(plan, lengths, world, cap)
    assert run(plan.ranks, random.Random(0)) == 0


@given(st.integers(1, 6), st.sampled_from(WORLDS), st.lists(st.integers(1, 60), max_size=30), st.data())
def test_small_caps_and_one_degree(cap: int, world: int, lengths: list[int], data: st.DataObject) -> None:
    degree = data.draw(st.sampled_from([1 << level for level in range(world.bit_length())]))
    try:
        plan = plan_static(lengths, world, cap, None, degree)
    except SampleTooLong:
        assert (padded(np.array(lengths), degree) > cap * degree).any()
        return
    check(plan, lengths, world, cap)
    assert {each.degree for each in plan.passes} <= {degree}


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(lengths: list[int], shuffle: random.Random) -> None:
    """Samples of one length are alike; which of them goes where may differ, what is done in all may not."""
    cost = CostModel.prior(SHAPE, 8)
    shuffled = list(lengths)
    shuffle.shuffle(shuffled)

    def shape(each: list[int]) -> list[list[tuple[int, list[int]]]]:
        plan = plan_hybrid(each, 8, 1024, cost)
        return [
            [(batch.degree, sorted(each[index] for index in batch.samples)) for batch in rank]
            for rank in plan.ranks
        ]

    assert shape(lengths) == shape(shuffled)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=40), st.integers(0, 3))
def test_larger_groups_never_make_it_slower(lengths: list[int], level: int) -> None:
    """What more ranks may share, fewer may too. The search is a heuristic: about 5 % was seen."""
    cost = CostModel.prior(SHAPE, 8)
    seconds = [plan_hybrid(lengths, 8, 2048, cost, largest_degree=1 << each).seconds for each in (level, 3)]
    assert all(later <= 1.15 * earlier for earlier, later in pairwise(seconds))


def test_many_short_samples_beside_a_shared_one() -> None:
    """Ranks that are in no large group get the short samples, as many as they are through with in time: with
    the constants of their passes, of which they make many."""
    cost = CostModel.prior(SHAPE, 5)
    lengths = lengths_of("no mean", 512, 5)
    plan = plan_hybrid(lengths, 5, 512, cost)
    assert plan.seconds <= 1.15 * lower_bound(lengths, 5, 512, cost)


@given(st.integers(1, 60), st.lists(st.integers(1, 60), min_size=1, max_size=200))
def test_a_group_packs_its_samples_first_fit(cap: int, lengths: list[int]) -> None:
    fitting = [min(length, cap) for length in lengths]
    bin_of = first_fit(np.array(fitting), cap)
    passes = [each.samples for each in plan_static(fitting, 1, cap, None, 1).passes]
    assert passes == members_of(bin_of, int(bin_of.max()) + 1)
