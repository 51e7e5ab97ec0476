"""Moves: only where they pay by their own prediction, and to engines that can take them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.routing.book import EngineState
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.drain import Capacity, Load, drain_seconds
from rljob_runtime.routing.rebalance import cache_full, capacity, into_pools, level, movable
from rljob_runtime.routing.requests import EngineShape, Move, RequestKey
from tests.support.simulated.routed import COST, Engines

SHORT = [100] * 30


def key(uid: int) -> RequestKey:
    return RequestKey(uid, 0)


def pools(site: Engines, cut: float = 1000, most: int = 64) -> list[Move]:
    """Moves to the first engine, the heavy one, from the others."""
    return into_pools(site.engines[:1], site.engines[1:], cut, site.remaining, most)


def levelled(site: Engines) -> list[Move]:
    return level(site.engines, site.remaining)


# Into pools


def test_long_requests_go_to_the_heavy_engine_the_longest_first() -> None:
    site = Engines([[], [3000, 2000, *SHORT], [4000, *SHORT]])
    assert [move.request for move in pools(site)] == [key(32), key(0), key(1)]
    assert {move.engine for move in pools(site)} == {0}
    assert not any(move.restart for move in pools(site))
    assert [move.request for move in pools(site, most=2)] == [key(32), key(0)]


@pytest.mark.parametrize(("left", "moves"), [(1249, 0), (1250, 1)])
def test_a_little_above_the_cut_they_stay(left: int, moves: int) -> None:
    assert len(pools(Engines([[], [left, *SHORT]]))) == moves


@pytest.mark.parametrize(
    ("prefill", "moves"),
    [(0.0, 1), (1e-4, 1), (1e-3, 0)],
)
def test_only_where_shorter_steps_save_more_than_the_prefill(prefill: float, moves: int) -> None:
    """2,000 steps beside 30 others last 6 s longer than alone, less the 10,001 tokens of prefill."""
    site = Engines([[], [2000, *SHORT]], prompt=10_000, cost=StepCost(0.01, 1e-4, 0, prefill))
    assert len(pools(site)) == moves


def test_not_where_the_heavy_engine_is_as_busy() -> None:
    assert pools(Engines([SHORT, [2000, *SHORT]])) == []
    # A step of 28 requests saves less than three hundredths of one of 31.
    assert pools(Engines([SHORT[:27], [2000, *SHORT]])) == []
    assert len(pools(Engines([SHORT[:20], [2000, *SHORT]]))) == 1


def test_each_move_makes_the_next_one_pay_less() -> None:
    """Forty long requests on one engine: they share the two until a step here is about as long as there."""
    site = Engines([[], [2000] * 40])
    assert 16 <= len(pools(site)) <= 20


def test_they_spread_over_the_heavy_engines_as_far_as_there_is_room() -> None:
    site = Engines([[], [100], [2000] * 8, [2000] * 8], limit=8)
    moves = into_pools(site.engines[:2], site.engines[2:], 1000, site.remaining, 64)
    assert [move.engine for move in moves[:5]] == [0, 0, 1, 0, 1]


@pytest.mark.parametrize(("limit", "moves"), [(8, 0), (9, 1), (10, 2)])
def test_an_engine_takes_as_many_as_it_has_places(limit: int, moves: int) -> None:
    site = Engines([[100] * 8, [2000] * 3 + [100] * 12], cost=StepCost(0.01, 0.01))
    site.engines[0].shape = site.engines[0].shape._replace(limit=limit)
    assert len(pools(site)) == moves


def test_a_limit_is_kept_over_all_moves() -> None:
    site = Engines([[], [2000] * 40])
    site.engines[0].shape = site.engines[0].shape._replace(limit=3)
    assert len(pools(site)) == 3


def test_a_heavy_engine_whose_cache_is_full_gets_none() -> None:
    """Room for requests is not room for their tokens: what runs there would be interrupted."""
    cost = StepCost(0.01, 1e-3)
    assert len(pools(Engines([[5], [2000] * 20], prompt=100, cost=cost, kv_tokens=300))) == 1
    assert pools(Engines([[5, 5, 5], [2000] * 20], prompt=100, cost=cost, kv_tokens=330)) == []
    assert pools(Engines([[5], [2000] * 20], prompt=100, cost=cost, kv_tokens=200)) == []


def test_the_cache_counts_what_was_sent_there_already() -> None:
    site = Engines([[], [2000] * 40], prompt=100, cost=StepCost(0.01, 1e-3), kv_tokens=1000)
    assert len(pools(site)) == 9


def test_a_heavy_engine_with_more_requests_takes_what_the_others_cache_cannot() -> None:
    site = Engines([[5], [5, 5], [2000] * 20], cost=StepCost(0.01, 1e-3), kv_tokens=1000)
    site.book.progress(site.book.request(key(0)), 900)
    moves = into_pools(site.engines[:2], site.engines[2:], 1000, site.remaining, 2)
    assert [move.engine for move in moves] == [1, 1], "910 of 1,000 tokens are more than nine tenths"


def test_a_cache_that_a_move_has_filled_gets_no_more() -> None:
    site = Engines([[], [5, 5, 5], [2000] * 20], prompt=100, cost=StepCost(0.01, 1e-3))
    site.engines[0].shape = site.engines[0].shape._replace(kv_tokens=110)
    moves = into_pools(site.engines[:2], site.engines[2:], 1000, site.remaining, 3)
    assert [move.engine for move in moves] == [0, 1, 1]


@pytest.mark.parametrize(("kv_tokens", "moves"), [(4010, False), (4011, True)])
def test_levelling_leaves_what_would_not_fit_to_its_end(kv_tokens: int, moves: bool) -> None:
    site = Engines([[4000, 4000], []], cost=StepCost(0.01, 0.01))
    site.engines[1].shape = site.engines[1].shape._replace(kv_tokens=kv_tokens)
    assert bool(levelled(site)) is moves


def test_one_that_moves_already_is_left_alone() -> None:
    site = Engines([[], [3000, *SHORT]])
    site.book.move(site.book.request(key(0)), None, False)
    assert pools(site) == []


@pytest.mark.parametrize(
    ("kv_tokens", "used", "full"), [(None, 10**9, False), (100, 90, False), (100, 91, True), (0, 1, True)]
)
def test_a_cache_is_full_when_little_is_left_for_what_runs(
    kv_tokens: int | None, used: int, full: bool
) -> None:
    assert cache_full(EngineShape("fast", 4, kv_tokens), used) is full


# Levelling


def ends(site: Engines, moves: list[Move]) -> dict[int, float]:
    """When each engine will have finished, once the moves are made."""
    target = {move.request: move.engine for move in moves}
    found = {}
    for engine in site.engines:
        loads, prefill = [], 0.0
        for request in (each for other in site.engines for each in other.running.values()):
            arrives = target.get(request.key) == engine.number
            if arrives or (request.engine is engine and request.key not in target):
                loads.append(Load(1, site.left[request.key], request.kv_tokens))
                prefill += arrives * request.kv_tokens * engine.shape.cost.per_prefill_token
        loads.sort(key=lambda load: load.remaining)
        found[engine.number] = drain_seconds(capacity(engine), loads) + prefill
    return found


@given(
    st.lists(st.lists(st.integers(1, 5000), max_size=12), min_size=2, max_size=5),
    st.sampled_from([COST, StepCost(0.001, 0.01, 1e-6, 1e-3), StepCost(0.01, 0.01, 0, 0.05)]),
    st.sampled_from([12, 16]),
    st.sampled_from([None, 2000]),
)
def test_the_last_to_finish_never_finishes_later(
    left: list[list[int]], cost: StepCost, limit: int, kv_tokens: int | None
) -> None:
    site = Engines(left, limit=limit, cost=cost, kv_tokens=kv_tokens)
    moves = levelled(site)
    assert max(ends(site, moves).values()) <= max(ends(site, []).values()) * (1 + 1e-9)
    assert len({move.request for move in moves}) == len(moves) <= 4
    arrivals = [move.engine for move in moves]
    assert all(arrivals.count(engine.number) <= engine.room for engine in site.engines)
    assert all(site.book.request(move.request).engine.number != move.engine for move in moves)  # type: ignore[union-attr]


def test_one_of_two_long_ones_goes_where_nothing_runs() -> None:
    site = Engines([[4000, 4000, 50, 50], []], cost=StepCost(0.01, 0.01))
    moves = levelled(site)
    assert moves[0] in (Move(key(0), 1, reason="levelled"), Move(key(1), 1, reason="levelled"))
    assert max(ends(site, moves).values()) < 0.8 * max(ends(site, []).values())


@pytest.mark.parametrize(
    "left",
    [[[4000], []], [[500, 500], [500, 500]], [[], []], [[100, 100], [100, 99]]],
    ids=["a single one has nowhere to be faster", "level already", "idle", "hardly anything to save"],
)
def test_what_is_level_stays(left: list[list[int]]) -> None:
    assert levelled(Engines(left, cost=StepCost(0.01, 0.01))) == []


def test_nothing_moves_where_it_costs_more_than_it_saves() -> None:
    left = [[1000] * 6, [1000]]
    assert levelled(Engines(left, prompt=1000, cost=StepCost(0.01, 0.01, 0, 0.0)))
    assert levelled(Engines(left, prompt=1000, cost=StepCost(0.01, 0.01, 0, 0.05))) == []


def test_what_moves_to_an_engine_is_paid_for_one_after_the_other() -> None:
    """A move of 10 s of prefill pays, a second one to the same engine does not any more."""
    site = Engines([[1000] * 8, [10]], prompt=1000, cost=StepCost(0.01, 0.01, 0, 0.02))
    moves = levelled(site)
    before = [max(ends(site, moves[:count]).values()) for count in range(len(moves) + 1)]
    assert all(later <= 0.97 * earlier + 1e-9 for earlier, later in itertools.pairwise(before))


def test_an_engine_without_room_takes_none() -> None:
    site = Engines([[4000, 4000, 50], [10, 10]], cost=StepCost(0.01, 0.01))
    site.engines[1].shape = site.engines[1].shape._replace(limit=2)
    assert levelled(site) == []


def test_what_has_been_told_to_move_is_left_out() -> None:
    site = Engines([[4000, 4000], []], cost=StepCost(0.01, 0.01))
    site.book.move(site.book.request(key(0)), None, False)
    assert levelled(site) == []


def test_an_engine_may_lose_what_is_not_leaving_it() -> None:
    site = Engines([[300, 300]])
    site.book.move(site.book.request(key(0)), None, False)
    assert movable(site.engines[0]) == [site.book.request(key(1))]


def test_an_engines_capacity_is_what_it_joined_with() -> None:
    engine = EngineState(3, EngineShape("heavy", 7, 99, COST))
    assert capacity(engine) == Capacity(COST, 7, 99)
