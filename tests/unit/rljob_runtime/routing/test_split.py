"""How engines are divided between long and short requests: against every other way."""

import itertools
import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.drain import Load, drain_seconds
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.routing.split import (
    NO_SPLIT,
    PAYS,
    POOLS_PAY,
    Counts,
    Split,
    count,
    merged,
    split_engines,
    split_pools,
)
from tests.support.simulated.routed import COST, faster, shape_of

STEEP = StepCost(0.001, 0.001)
"""Steps that are hardly more than what their requests cost."""


def counts_of(requests: Iterable[tuple[float, int]]) -> Counts:
    found: Counts = {}
    for remaining, kv in requests:
        count(found, remaining, kv)
    return found


def share(loads: list[Load], engine: EngineShape, engines: int) -> float:
    return (
        drain_seconds(engine, [load._replace(number=load.number / engines) for load in loads])
        if loads
        else 0.0
    )


def every_cut(loads: list[Load], engine: EngineShape, heavy: int, fast: int) -> list[float]:
    """When all have finished, for each place of the cut."""
    return [
        max(share(loads[place:], engine, heavy), share(loads[:place], engine, fast))
        for place in range(len(loads) + 1)
    ]


requests = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from([2.0**n for n in range(3, 16)])),
    min_size=1, unique_by=lambda each: each[1],
)  # fmt: skip
capacities = st.builds(shape_of, st.sampled_from([COST, STEEP, StepCost()]), st.just(10_000), st.none())


def loads_of(requests: list[tuple[int, float]]) -> list[Load]:
    return [
        Load(number, remaining, 100.0) for number, remaining in sorted(requests, key=lambda each: each[1])
    ]


@given(requests, capacities, st.integers(1, 4), st.integers(1, 4))
def test_no_other_cut_between_two_pools_ends_sooner(
    requests: list[tuple[int, float]], engine: EngineShape, heavy: int, fast: int
) -> None:
    loads = loads_of(requests)
    found = split_pools(loads, [engine] * heavy, [engine] * fast)
    best = min(every_cut(loads, engine, heavy, fast))
    if not found.heavy:
        assert best >= (1 - POOLS_PAY) * share(loads, engine, heavy + fast) * (1 - 1e-9)
        return
    assert found.seconds == pytest.approx(best)
    below = [load for load in loads if load.remaining < found.cut]
    assert found.heavy == heavy
    assert found.fast_seconds == pytest.approx(share(below, engine, fast))
    assert found.heavy_seconds == pytest.approx(share(loads[len(below) :], engine, heavy))


@given(requests, capacities, st.integers(1, 4))
def test_of_few_engines_no_other_number_and_cut_ends_sooner(
    requests: list[tuple[int, float]], engine: EngineShape, engines: int
) -> None:
    loads = loads_of(requests)
    found = split_engines(loads, [engine] * engines)
    together = share(loads, engine, engines)
    best = min(
        [together]
        + [
            seconds
            for heavy in range(1, engines // 2 + 1)
            for seconds in every_cut(loads, engine, heavy, engines - heavy)
        ]
    )
    if best < (1 - PAYS) * together * (1 - 1e-9):
        assert found.seconds == pytest.approx(best)
        assert 1 <= found.heavy <= engines // 2 and math.isfinite(found.cut)
    elif best > (1 - PAYS) * together * (1 + 1e-9):
        assert found == Split(0, math.inf, 0.0, together)


@pytest.mark.parametrize("engines", [16, 64, 1024])
def test_of_many_engines_it_is_as_good_as_every_number_would_be(engines: int) -> None:
    """Not every number is tried; what is lost by that is a few hundredths at most."""
    engine = shape_of(STEEP, 10_000, None)
    loads = [Load(engines * 64 / 4**n, 2.0 ** (5 + n), 100.0) for n in range(8)]
    found = split_engines(loads, [engine] * engines)
    numbers = range(1, engines // 2 + 1, max(1, engines // 64))
    best = min(min(every_cut(loads, engine, heavy, engines - heavy)) for heavy in numbers)
    assert found.heavy > 0
    assert found.seconds <= 1.03 * best


def test_a_few_long_ones_among_many_get_an_engine() -> None:
    """256 requests of 400 tokens and 4 of 2,000: these end after 2,000 short steps in place of long ones."""
    engine = shape_of(StepCost(0.01, 0.0006), 128, None)
    found = split_engines([Load(256, 400, 10), Load(4, 2000, 10)], [engine] * 4)
    assert found.heavy == 1
    assert 400 < found.cut < 2000
    assert found.heavy_seconds == pytest.approx(2000 * 0.0124)
    assert found.fast_seconds == pytest.approx(400 * (0.01 + 86 * 0.0006)), "86 on the fullest of the three"


@pytest.mark.parametrize(
    ("limit", "kv_tokens", "heavy"),
    [
        (128, None, 1),
        (128, 28_250, 1),
        (128, 28_249, 0),
        (86, None, 1),
        (64, None, 0),
    ],
    ids=["enough of both", "all fits when it has grown", "the cache is short", "places", "places are short"],
)
def test_no_engine_is_kept_where_places_or_caches_are_short(
    limit: int, kv_tokens: int | None, heavy: int
) -> None:
    """256 requests of 400 tokens and 4 of 2,000 with 10 more each in the cache: 113,000 tokens at their ends,
    28,250 for each of four engines."""
    engine = shape_of(StepCost(0.01, 0.0006), limit, kv_tokens)
    assert split_engines([Load(256, 400, 10), Load(4, 2000, 10)], [engine] * 4).heavy == heavy


def test_one_engine_has_nothing_to_divide() -> None:
    loads = [Load(10, 100, 10), Load(1, 10_000, 10)]
    assert split_engines(loads, [shape_of(STEEP, 64, None)]).heavy == 0


def test_where_steps_take_as_long_whatever_runs_none_is_heavy() -> None:
    found = split_engines([Load(100, 100, 10), Load(4, 5000, 10)], [shape_of(StepCost(), 512, None)] * 8)
    assert found == Split(0, math.inf, 0.0, 5000 * 0.01)


@pytest.mark.parametrize(("heavy", "fast"), [(0, 3), (3, 0)])
def test_a_pool_without_engines_leaves_everything_to_the_other(heavy: int, fast: int) -> None:
    engine, loads = shape_of(COST, 64, None), [Load(9, 100, 10)]
    found = split_pools(loads, [engine] * heavy, [engine] * fast)
    assert found == Split(0, math.inf, 0.0, share(loads, engine, 3))


def test_a_plan_lasts_as_long_as_the_slower_kind_of_engines() -> None:
    assert Split(1, 5.0, 2.0, 3.0).seconds == 3.0
    assert Split(1, 5.0, 4.0, 3.0).seconds == 4.0


@pytest.mark.parametrize(
    ("short", "long", "heavy"),
    [(100, 5000, 1), (100, 500, 1), (-3, 8000, 4)],
    ids=["far apart", "close", "should have ended"],
)
def test_the_cut_lies_between_what_is_fast_and_what_is_heavy(short: float, long: float, heavy: int) -> None:
    """In the middle of the two, by ratio: at the heavy ones' own length a request of them would count as long
    or not by chance, and one that has to be clearly above the cut to move would never do."""
    engine = shape_of(StepCost(0.01, 0.001), 64, None)
    twice = engine._replace(cost=faster(engine.cost, 2))
    found = split_pools([Load(100, short, 10), Load(4, long, 10)], [twice] * heavy, [engine] * 3)
    assert found.cut == pytest.approx(math.sqrt(max(1, short) * long))


@pytest.mark.parametrize(
    ("speed", "limit", "long", "divided"),
    [
        (1.0, 64, 800, True),
        (2.0, 64, 800, True),
        (0.7, 64, 800, False),
        (0.7, 64, 400, False),
        (1.0, 64, 130, False),
        (1.0, 8, 200, False),
    ],
    ids=["as fast", "twice as fast", "slower", "slower, not so long", "much alike", "places are short"],
)
def test_two_pools_are_divided_by_length_where_that_pays(
    speed: float, limit: int, long: float, divided: bool
) -> None:
    """120 requests of 100 tokens and 4 of `long`, on three fast engines and a heavy one."""
    fast = shape_of(StepCost(0.01, 0.001), limit, None)
    heavy = fast._replace(cost=faster(fast.cost, speed))
    found = split_pools([Load(120, 100, 10), Load(4, long, 10)], [heavy], [fast] * 3)
    assert (found.heavy, math.isfinite(found.cut)) == ((1, True) if divided else (0, False))


@pytest.mark.parametrize("others", [1, 2, 6])
def test_pools_that_are_not_divided_share_the_work_by_their_speeds(others: int) -> None:
    """Requests of one length: an engine twice as fast as each of the others counts as two of them."""
    engine = shape_of(StepCost(1e-9, 0.01), 1000, None)
    twice = engine._replace(cost=StepCost(1e-9, 0.005))
    found = split_pools([Load(512, 100, 10)], [twice], [engine] * others)
    seconds = pytest.approx(512 / (2 + others), rel=0.02)
    assert found == Split(0, math.inf, seconds, found.heavy_seconds)


def test_where_nothing_is_under_way_nothing_is_divided() -> None:
    engine = shape_of(COST, 64, None)
    assert split_pools([], [engine], [engine]) == split_engines([], [engine] * 4) == NO_SPLIT


# Counting


@pytest.mark.parametrize(("fill", "divided"), [(0, True), (50, True), (250, False)])
def test_a_pool_that_would_prefill_most_of_what_waits_is_not_sooner_done(fill: float, divided: bool) -> None:
    """Eight requests of one length and an engine twice as fast as the five others: alone it decodes them in
    half of the time, but prefills them one after the other."""
    engine = shape_of(StepCost(0.01, per_prefill_token=1e-3), 64, None)
    heavy = engine._replace(cost=faster(engine.cost, 2))
    found = split_pools([Load(8, 100, fill, fill)], [heavy], [engine] * 5)
    assert (found.heavy, found.cut) == ((1, 0.0) if divided else (0, math.inf))


@given(st.lists(st.tuples(st.floats(-50, 100_000), st.integers(0, 10_000)), min_size=1))
def test_counting_loses_nothing(requests: list[tuple[float, int]]) -> None:
    loads = merged(counts_of(requests))
    assert sum(load.number for load in loads) == len(requests)
    for total, each in (
        (sum(remaining for remaining, _ in requests), "remaining"),
        (sum(kv for _, kv in requests), "kv_tokens"),
    ):
        found = sum(load.number * getattr(load, each) for load in loads)
        assert found == pytest.approx(total, abs=1e-6)
    means = [load.remaining for load in loads]
    assert means == sorted(means)


def test_requests_of_about_one_length_are_counted_together() -> None:
    assert merged(counts_of([])) == []
    assert merged(counts_of([(100, 4), (100.5, 8), (200, 1), (0.5, 3), (-9, 5), (1, 7)])) == [
        Load(3, -2.5, 5.0),
        Load(2, 100.25, 6.0),
        Load(1, 200, 1.0),
    ]


def test_what_is_to_be_prefilled_is_counted_beside_what_is_not() -> None:
    running: Counts = {}
    waiting: Counts = {}
    count(running, 100, 30)
    count(waiting, 100, 10, 10)
    assert merged(running, waiting) == [Load(2, 100, 20.0, 5.0)]


def test_the_buckets_do_not_grow_with_the_requests() -> None:
    loads = merged(counts_of((1.001**n, 0) for n in range(17_000)))
    assert len(loads) <= 96
    ratios = [b.remaining / a.remaining for a, b in itertools.pairwise(loads[2:-1])]
    assert all(1.15 < ratio < 1.23 for ratio in ratios), "four to a doubling"
