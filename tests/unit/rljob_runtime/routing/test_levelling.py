"""Levelling: only where it pays by its own prediction, and urgent requests first."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.drain import Load, drain_seconds
from rljob_runtime.routing.levelling import level, trial
from rljob_runtime.routing.requests import Move, RequestKey
from tests.support.simulated.routed import COST, Engines, faster


def key(uid: int) -> RequestKey:
    return RequestKey(uid, 0)


def levelled(site: Engines, urgent: int | None = None) -> list[Move]:
    return level(site.engines, site.remaining, urgent)


def ends(site: Engines, moves: list[Move], urgent: int | None = None) -> dict[int, float]:
    """When each engine will have finished, once the moves are made; with `urgent`, what is up to that
    deadline."""
    target = {move.request: move.engine for move in moves}
    found = {}
    for engine in site.engines:
        loads, prefill, longest = [], 0.0, 0
        for request in (each for other in site.engines for each in other.running.values()):
            arrives = target.get(request.key) == engine.number
            if arrives or (request.engine is engine and request.key not in target):
                loads.append(Load(1, site.left[request.key], request.kv_tokens))
                if urgent is None or request.group.request.deadline <= urgent:
                    longest = max(longest, site.left[request.key])
                prefill += arrives * request.kv_tokens * engine.shape.cost.per_prefill_token
        loads = [load._replace(remaining=min(load.remaining, longest)) for load in loads]
        loads.sort(key=lambda load: load.remaining)
        found[engine.number] = drain_seconds(engine.shape, loads) + prefill
    return found


@given(
    st.lists(st.lists(st.integers(1, 5000), max_size=12), min_size=2, max_size=5),
    st.sampled_from([COST, StepCost(0.001, 0.01, 1e-6, 1e-3), StepCost(0.01, 0.01, 0, 0.05)]),
    st.sampled_from([12, 16]),
    st.sampled_from([None, 2000]),
    st.sampled_from([None, 0, 4]),
)
def test_the_last_to_finish_never_finishes_later(
    left: list[list[int]], cost: StepCost, limit: int, kv_tokens: int | None, urgent: int | None
) -> None:
    """Whatever is urgent: here every third request has deadline 4."""
    uids = range(0, sum(map(len, left)), 3)
    site = Engines(left, limit=limit, cost=cost, kv_tokens=kv_tokens, deadlines=dict.fromkeys(uids, 4))
    moves = levelled(site, urgent)
    assert max(ends(site, moves).values()) <= max(ends(site, []).values()) * (1 + 1e-9)
    assert len({move.request for move in moves}) == len(moves)
    pairs = {(site.book.request(move.request).engine.number, move.engine) for move in moves}  # type: ignore[union-attr]
    assert len(pairs) <= (4 if urgent is None else 8)
    arrivals = [move.engine for move in moves]
    assert all(arrivals.count(engine.number) <= engine.room for engine in site.engines)
    assert all(site.book.request(move.request).engine.number != move.engine for move in moves)  # type: ignore[union-attr]


def test_one_of_two_long_ones_goes_where_nothing_runs() -> None:
    site = Engines([[4000, 4000, 50, 50], []], cost=StepCost(0.01, 0.01))
    moves = levelled(site)
    assert sum(move.request in (key(0), key(1)) for move in moves) == 1
    assert max(ends(site, moves).values()) < 0.8 * max(ends(site, []).values())


@pytest.mark.parametrize(
    "left",
    [[[4000], []], [[500, 500], [500, 500]], [[], []], [[100, 100], [100, 99]]],
    ids=["a single one has nowhere to be faster", "level already", "idle", "hardly anything to save"],
)
def test_what_is_level_stays(left: list[list[int]]) -> None:
    assert levelled(Engines(left, cost=StepCost(0.01, 0.01))) == []


def test_an_engine_with_nothing_to_do_gets_its_share_at_once() -> None:
    """One request would save too little to be worth its move."""
    site = Engines([[1000 + uid for uid in range(32)], []], cost=StepCost(0.01, 0.001))
    moves = levelled(site)
    assert [move.request.uid for move in moves] == list(range(1, 32, 2)), "of all lengths"
    assert max(ends(site, moves).values()) < 0.7 * max(ends(site, []).values())


def test_of_many_that_could_move_as_many_go_as_there_is_room() -> None:
    site = Engines([[1000 + uid for uid in range(32)], []], cost=StepCost(0.01, 0.001))
    site.engines[1].shape = site.engines[1].shape._replace(limit=7)
    assert 4 <= len(levelled(site)) <= 7


def test_nothing_moves_where_it_costs_more_than_it_saves() -> None:
    left = [[1000] * 6, [1000]]
    assert levelled(Engines(left, prompt=1000, cost=StepCost(0.01, 0.01, 0, 0.0)))
    assert levelled(Engines(left, prompt=1000, cost=StepCost(0.01, 0.01, 0, 0.05))) == []


@pytest.mark.parametrize(("speed", "moves"), [(0.7, False), (1.0, False), (1.05, False), (1.1, True)])
def test_the_last_response_goes_to_a_faster_engine_that_has_nothing_to_do(speed: float, moves: bool) -> None:
    site = Engines([[4000], []])
    site.engines[1].shape = site.engines[1].shape._replace(cost=faster(COST, speed))
    assert levelled(site) == ([Move(key(0), 1, reason="levelled")] if moves else [])


def test_of_engines_with_nothing_to_do_the_fastest_one_gets_it() -> None:
    site = Engines([[4000, 4000], [], []], cost=StepCost(0.01, 0.01))
    site.engines[2].shape = site.engines[2].shape._replace(cost=faster(StepCost(0.01, 0.01), 2))
    assert {move.engine for move in levelled(site)} == {2}


@pytest.mark.parametrize(("prefill", "moves"), [(1e-4, True), (9.4e-3, True), (9.6e-3, False), (2e-2, False)])
def test_a_move_saves_twice_what_it_costs(prefill: float, moves: bool) -> None:
    """Two of 1,000 tokens end after 30 s beside each other and after 20 s alone. 5 % of 30 s are wanted on
    top: 8.5 s are twice the prefill of 450 tokens at 9.4 ms each."""
    site = Engines([[1000, 1000], []], prompt=449, cost=StepCost(0.01, 0.01, 0, prefill))
    assert bool(levelled(site)) is moves


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


def begun_anew(site: Engines, *uids: int) -> None:
    """These requests have just been put where they are."""
    for uid in uids:
        request = site.book.request(key(uid))
        engine = request.engine
        assert engine is not None
        site.book.interrupted(request, request.tokens)
        site.book.place(request, engine)


@pytest.mark.parametrize(("begun", "moves"), [(True, True), (False, False)])
def test_what_may_still_be_prefilled_keeps_requests_away(begun: bool, moves: bool) -> None:
    """Two of 1,000 tokens end after 30 s beside each other, and after 28 s alone with twice the prefill of
    one; that of the short one takes 4 s more."""
    site = Engines([[1000, 1000], [10]], prompt=999, cost=StepCost(0.01, 0.01, 0, 4e-3))
    if not begun:
        begun_anew(site, 2)
    assert bool(levelled(site)) is moves


def test_what_may_still_be_prefilled_lets_none_leave() -> None:
    """All but done, it would have to be done again elsewhere."""
    site = Engines([[500, 500, 500], [500]], prompt=999, cost=StepCost(0.01, 0.0, 0, 2e-3))
    begun_anew(site, 0, 1, 2)
    assert levelled(site) == []


@pytest.mark.parametrize(("begun", "moves"), [(True, True), (False, False)])
def test_there_is_nothing_to_copy_of_what_has_not_begun(begun: bool, moves: bool) -> None:
    """Two of 1,000 tokens end after 30 s beside each other and after 20 s alone. There the prefill takes
    20 s, and the copy 20 ms."""
    site = Engines([[1000, 1000], []], prompt=999, cost=StepCost(0.01, 0.01, per_copied_token=2e-5))
    site.engines[1].shape = site.engines[1].shape._replace(
        cost=StepCost(0.01, 0.01, per_prefill_token=0.02, per_copied_token=2e-5)
    )
    if not begun:
        begun_anew(site, 0, 1)
    assert bool(levelled(site)) is moves


def test_what_is_on_its_way_to_an_engine_counts_there() -> None:
    """What an earlier plan has told to move has not left: its place is taken already."""
    site = Engines([[1000 + uid for uid in range(32)], []], cost=StepCost(0.01, 0.001))
    for move in levelled(site):
        site.book.move(site.book.request(move.request), site.engines[move.engine], False)
    assert levelled(site) == []


@pytest.mark.parametrize(("kv_tokens", "moves"), [(4010, False), (4011, True)])
def test_levelling_leaves_what_would_not_fit_to_its_end(kv_tokens: int, moves: bool) -> None:
    site = Engines([[4000, 4000], []], cost=StepCost(0.01, 0.01))
    site.engines[1].shape = site.engines[1].shape._replace(kv_tokens=kv_tokens)
    assert bool(levelled(site)) is moves


@pytest.mark.parametrize(("kv_tokens", "moves"), [(4521, False), (4522, True)])
def test_what_runs_where_it_goes_grows_to_its_end_too(kv_tokens: int, moves: bool) -> None:
    """4,011 tokens of the one that moves, 511 of the one that is there."""
    site = Engines([[4000, 4000], [500]], cost=StepCost(0.01, 0.01))
    site.engines[1].shape = site.engines[1].shape._replace(kv_tokens=kv_tokens)
    assert bool(levelled(site)) is moves


# Urgent requests

FAST = StepCost(0.005, 0.005)
SLOW = StepCost(0.01, 0.01)


def test_an_urgent_request_goes_to_the_engine_with_the_shortest_steps() -> None:
    """All have ended at the same time with and without the move: levelling alone leaves it where it is."""
    site = Engines([[2000, 4000, 4000], [4000, 10]], cost=SLOW, deadlines={0: 4})
    site.engines[1].shape = site.engines[1].shape._replace(cost=FAST)
    assert levelled(site, 4)[0] == Move(key(0), 1, reason="urgent")
    before, after = (max(ends(site, moves, urgent=4).values()) for moves in ([], levelled(site, 4)))
    assert after < 0.6 * before


@pytest.mark.parametrize(
    ("per_request", "per_kv_token", "taker"), [(0.01, 0.0, 1), (0.0, 1e-3, 2), (0.001, 1e-4, 2)]
)
def test_the_shortest_step_is_that_of_requests_and_tokens(
    per_request: float, per_kv_token: float, taker: int
) -> None:
    """Two requests with 310 tokens together, against three with 33."""
    cost = StepCost(0.01, per_request, per_kv_token)
    site = Engines([[2000] * 12, [50, 50], [50, 50, 50]], cost=cost, deadlines={0: 4})
    site.book.progress({key(12): 289})
    assert levelled(site, 4)[0] == Move(key(0), taker, reason="urgent")


def test_a_step_is_longer_after_a_move_to_its_engine() -> None:
    """Of two engines with nothing to do each gets one of two urgent requests."""
    left = [2000, 4000, 4000, 4000]
    site = Engines([left, left, [], []], cost=SLOW, deadlines={0: 4, 4: 4})
    moves = {move.request: move.engine for move in levelled(site, 4) if move.reason == "urgent"}
    assert moves == {key(0): 2, key(4): 3}


@pytest.mark.parametrize(("left", "moves"), [(4000, True), (8000, False)])
def test_not_where_something_else_would_end_last_of_all_for_it(left: int, moves: bool) -> None:
    site = Engines([[2000, 3990, 3990], [left, left, left]], cost=SLOW, deadlines={0: 4})
    site.engines[1].shape = site.engines[1].shape._replace(cost=FAST)
    assert (key(0) in {move.request for move in levelled(site, 4)}) is moves


def test_another_one_where_the_first_would_end_last_of_all() -> None:
    """The first one's 3,010 tokens are 90 s of prefill, more than there is to come for all."""
    cost = SLOW._replace(per_prefill_token=0.03)
    site = Engines([[2000, 2000, 2000], []], cost=cost, deadlines={0: 4, 1: 4})
    site.book.progress({key(0): 3000})
    assert levelled(site, 4)[0] == Move(key(1), 1, reason="urgent")


def test_a_single_one_moves_to_a_faster_engine() -> None:
    site = Engines([[4000, 10], []], cost=SLOW, deadlines={0: 4})
    site.engines[1].shape = site.engines[1].shape._replace(cost=FAST)
    assert levelled(site, 4) == [Move(key(0), 1, reason="urgent")]


@pytest.mark.parametrize("prefill", [0.0, 0.1])
def test_not_where_its_prefill_takes_longer_than_it_saves(prefill: float) -> None:
    site = Engines(
        [[400, 500, 500], [5]], prompt=200, cost=SLOW._replace(per_prefill_token=prefill), deadlines={0: 4}
    )
    assert bool(levelled(site, 4)) is (prefill == 0)


def test_without_anything_urgent_deadlines_change_nothing() -> None:
    left = [[4000, 4000, 50, 50], [], [700]]
    assert levelled(Engines(left, cost=SLOW), 4) == levelled(Engines(left, cost=SLOW))


TRIED = StepCost(0.01, 0.0004, 0.0, 1e-3, assumed=True)
"""Prefill of a token takes a tenth of a step, as far as known."""


@pytest.mark.parametrize(
    ("left", "cost", "moved"),
    [
        ([[1000, 1000], []], TRIED, 0),
        ([[1000, 1000], []], TRIED._replace(assumed=False), None),
        ([[1000, 1000], []], TRIED._replace(measured=False), None),
        ([[1000, 1000], []], TRIED._replace(per_copied_token=1e-3), None),
        ([[1000, 1000], []], TRIED._replace(per_prefill_token=2.1e-3), None),
        ([[1000, 1000], [900]], TRIED, None),
        ([[1000, 1000, 500, 20], [900]], TRIED, 2),
        ([[1000], [900]], TRIED, None),
        ([[]], TRIED, None),
    ],
    ids=[
        "as soon as it is assumed what moves cost",
        "it is known",
        "nothing is known of steps",
        "a copy tells nothing of prefill",
        "it would end later if it cost twice as much",
        "no time is left there",
        "a shorter one has time there",
        "the only one of the engine that ends last",
        "nowhere to go",
    ],
)
def test_a_trial_puts_nothing_off(left: list[list[int]], cost: StepCost, moved: int | None) -> None:
    """A prompt of 99 tokens and a token are to be computed again, and by levelling none would move."""
    site = Engines(left, prompt=99, cost=cost)
    assert level(site.engines, site.remaining) == []
    moves = trial(site.engines, site.remaining)
    assert [(move.request, move.engine) for move in moves] == ([] if moved is None else [(key(moved), 1)])
    assert max(ends(site, moves).values()) <= max(ends(site, []).values())
