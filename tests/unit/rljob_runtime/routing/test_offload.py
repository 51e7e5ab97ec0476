"""Moves: only where they pay by their own prediction, and to engines that can take them."""

import pytest

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.offload import cache_full, offload
from rljob_runtime.routing.requests import EngineShape, Move, RequestKey
from tests.support.simulated.routed import Engines

SHORT = [100] * 30


def key(uid: int) -> RequestKey:
    return RequestKey(uid, 0)


def pools(site: Engines, cut: float = 1000, most: int = 64) -> list[Move]:
    """Moves to the first engine, the heavy one, from the others."""
    return offload(site.engines[:1], site.engines[1:], cut, site.remaining, most)


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
    """2,000 steps beside 30 others last 6 s longer than alone; of the 10,001 tokens of prefill it has to save
    twice the time."""
    site = Engines([[], [2000, *SHORT]], prompt=10_000, cost=StepCost(0.01, 1e-4, 0, prefill))
    assert len(pools(site)) == moves


@pytest.mark.parametrize(("there", "moves"), [(0, 1), (1, 1), (2, 0), (10, 0)])
def test_what_runs_on_the_heavy_engine_stands_still_for_the_prefill(there: int, moves: int) -> None:
    """1 s of prefill, for the one that moves and for each that is there; twice that has to be saved. 2,000
    steps beside 30 others last 6 s longer than alone, and each one that is there takes 0.2 s of that away."""
    site = Engines([[50] * there, [2000, *SHORT]], prompt=9999, cost=StepCost(0.01, 1e-4, 0, 1e-4))
    assert len(pools(site)) == moves


@pytest.mark.parametrize(("last", "moves"), [(3590, 0), (3610, 1), (3690, 1), (3710, 2), (3910, 4)])
def test_nothing_ends_later_for_it_than_the_last_of_all_would_have_ended(last: int, moves: int) -> None:
    """Four of 1,500 tokens at 0.02 s here, and one there that ends after 35 s. Each prefill of 0.5 s puts
    that one off, or takes twice as long."""
    cost = StepCost(0.01, 0.0, 0, 1e-3)
    site = Engines([[3500], [1500] * 4, [last]], prompt=499, cost=cost)
    site.engines[1].shape = site.engines[1].shape._replace(cost=cost.times(2))
    assert len(pools(site)) == moves


@pytest.mark.parametrize(("surely", "moves"), [(2000, 1), (700, 1), (600, 0)])
def test_it_saves_the_prefill_also_where_it_turns_out_to_be_short(surely: float, moves: int) -> None:
    """1 s of prefill, and 3 ms that each step saves."""
    site = Engines([[], [2000, *SHORT]], prompt=9999, cost=StepCost(0.01, 1e-4, 0, 1e-4))
    found = offload(
        site.engines[:1], site.engines[1:], 1000, site.remaining, 64, surely=lambda request: surely
    )
    assert len(found) == moves


def test_what_has_come_to_the_heavy_engine_is_prefilled_first() -> None:
    """It ends after 35 s, with 0.5 s of prefill before; the last of all after 36.1 s."""
    cost = StepCost(0.01, 0.0, 0, 1e-3)
    site = Engines([[3500], [1500], [3610]], prompt=499, cost=cost)
    site.engines[1].shape = site.engines[1].shape._replace(cost=cost.times(2))
    assert len(pools(site)) == 1
    site.book.interrupted(site.book.request(key(0)), 1)
    site.book.place(site.book.request(key(0)), site.engines[0])
    assert pools(site) == []


def test_nobody_stands_still_for_a_copy() -> None:
    cost = StepCost(0.01, 1e-4, 0, 1e-4, per_copied_token=1e-4)
    assert len(pools(Engines([[50] * 10, [2000, *SHORT]], prompt=9999, cost=cost))) == 1


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
    moves = offload(site.engines[:2], site.engines[2:], 1000, site.remaining, 64)
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


@pytest.mark.parametrize(
    ("kv_tokens", "moves"), [(100, 0), (101, 0), (4100, 0), (4101, 1), (8201, 1), (8202, 2)]
)
def test_only_what_fits_into_the_cache_to_its_end_moves(kv_tokens: int, moves: int) -> None:
    """Each has 101 tokens, and 2,000 to come, or twice as many: what is driven out of a cache waits, while it
    would have gone on where it was."""
    site = Engines([[], [2000] * 20], prompt=100, cost=StepCost(0.01, 1e-3))
    site.engines[0].shape = site.engines[0].shape._replace(kv_tokens=kv_tokens)
    assert len(pools(site)) == moves


@pytest.mark.parametrize(("source", "moves"), [(None, 0), (16404, 0), (8202, 1), (2050, 2)])
def test_a_cache_that_will_be_short_is_as_good_as_one_that_will_be_shorter(
    source: int | None, moves: int
) -> None:
    """Four of 4,101 tokens in the end: here is a cache for all, for two, or for half of one of them, there is
    one for half of one."""
    site = Engines([[], [2000] * 4], prompt=100, cost=StepCost(0.01, 0.01))
    for engine, kv_tokens in zip(site.engines, (2051, source), strict=True):
        engine.shape = engine.shape._replace(kv_tokens=kv_tokens)
    assert len(pools(site)) == moves


def test_the_cache_counts_what_was_sent_there_already() -> None:
    site = Engines([[], [2000] * 40], prompt=100, cost=StepCost(0.01, 1e-3), kv_tokens=1000)
    assert len(pools(site)) == 9


def test_the_cache_counts_what_is_on_its_way() -> None:
    """What an earlier plan has told to move has not left its engine."""
    site = Engines([[], [2000] * 40], prompt=100, cost=StepCost(0.01, 1e-3), kv_tokens=1000)
    for move in pools(site)[:4]:
        site.book.move(site.book.request(move.request), site.engines[0], False)
    assert len(pools(site)) == 5


def test_a_heavy_engine_with_more_requests_takes_what_the_others_cache_cannot() -> None:
    site = Engines([[5], [5, 5], [2000] * 20], cost=StepCost(0.01, 1e-3), kv_tokens=1000)
    site.book.progress({key(0): 900})
    moves = offload(site.engines[:2], site.engines[2:], 1000, site.remaining, 2)
    assert [move.engine for move in moves] == [1, 1], "910 of 1,000 tokens are more than nine tenths"


def test_a_cache_that_a_move_has_filled_gets_no_more() -> None:
    site = Engines([[], [5, 5, 5], [2000] * 20], prompt=100, cost=StepCost(0.01, 1e-3))
    site.engines[0].shape = site.engines[0].shape._replace(kv_tokens=4110)
    moves = offload(site.engines[:2], site.engines[2:], 1000, site.remaining, 3)
    assert [move.engine for move in moves] == [0, 1, 1]


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


# Deadlines


@pytest.mark.parametrize(
    ("urgent", "deadlines", "order"),
    [
        (None, {2: 4}, [0, 1, 2]),
        (4, {2: 4}, [2, 0, 1]),
        (4, {2: 3, 1: 4}, [1, 2, 0]),
        (4, {}, [0, 1, 2]),
    ],
    ids=["one deadline", "the shortest is urgent", "an earlier deadline is as urgent", "nothing is urgent"],
)
def test_what_the_next_step_waits_for_moves_to_the_heavy_engines_first(
    urgent: int | None, deadlines: dict[int, int], order: list[int]
) -> None:
    site = Engines([[4000, 3000, 2000, *SHORT], []], deadlines=deadlines)
    moves = offload(site.engines[1:], site.engines[:1], 1000, site.remaining, 64, urgent)
    assert [move.request.uid for move in moves] == order


def test_an_urgent_request_gets_the_last_place() -> None:
    site = Engines([[4000, 2000, *SHORT], []], deadlines={1: 4})
    site.engines[1].shape = site.engines[1].shape._replace(limit=1)
    moves = offload(site.engines[1:], site.engines[:1], 1000, site.remaining, 64, 4)
    assert [move.request for move in moves] == [key(1)]


def test_a_short_request_stays_however_urgent() -> None:
    site = Engines([[1249, *SHORT], []], deadlines={0: 4})
    assert offload(site.engines[1:], site.engines[:1], 1000, site.remaining, 64, 4) == []


def test_an_engine_may_lose_what_is_not_leaving_it() -> None:
    site = Engines([[300, 300]])
    site.book.move(site.book.request(key(0)), None, False)
    assert site.engines[0].movable == [site.book.request(key(1))]
