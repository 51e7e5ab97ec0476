"""Engines that share each step: all come down to a smaller gear or none, and KV tokens are levelled."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.lockstep import level_lockstep
from rljob_runtime.routing.requests import Move, RequestKey
from tests.support.simulated.routed import Engines

GEARS = (2, 4, 8, 16)
COUNTED = StepCost(0.01, 0.01, 0.0, 0.0, GEARS)
"""A step costs what its gear says."""
READ = StepCost(0.01, 0.0, 0.001, 0.0, GEARS)
"""A step costs what the KV tokens of the fullest rank say."""


def ranks(
    tokens: Sequence[Sequence[int]],
    cost: StepCost,
    left: int | Sequence[Sequence[int]] = 1000,
    limit: int = 16,
) -> Engines:
    """Ranks with requests that have so many tokens, prompts included, and `left` to come: each the same, or
    of its own."""
    lefts = [[left] * len(each) for each in tokens] if isinstance(left, int) else left
    site = Engines(lefts, limit=limit, prompt=1, cost=cost)
    for uid, count in enumerate(count for each in tokens for count in each):
        site.book.progress({RequestKey(uid, 0): count - 1})
    return site


def levelled(site: Engines) -> list[Move]:
    return level_lockstep(site.engines, site.remaining)


def pairs(moves: Sequence[Move]) -> list[tuple[int, int | None]]:
    """Which request goes where."""
    return [(move.request.uid, move.engine) for move in moves]


def after(site: Engines, moves: Sequence[Move]) -> tuple[list[int], list[int]]:
    """Requests and KV tokens of each rank once the moves are made."""
    target = {move.request: move.engine for move in moves}
    counts, tokens = [0] * len(site.engines), [0] * len(site.engines)
    for engine in site.engines:
        for request in engine.running.values():
            place = target.get(request.key, engine.number)
            assert place is not None
            counts[place] += 1
            tokens[place] += request.kv_tokens
    return counts, tokens


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([5, 3, 2, 2], [4, 3, 3, 2]),
        ([6, 6, 2, 2], [4, 4, 4, 4]),
        ([5, 4, 4, 4], [5, 4, 4, 4]),
        ([4, 3, 3, 3], [4, 3, 3, 3]),
        ([9, 1, 1, 1], [4, 3, 3, 2]),
    ],
    ids=[
        "one goes", "several go", "the mean does not fit the smaller gear", "the gear is small enough",
        "two gears at once",
    ],
)  # fmt: skip
def test_all_come_down_to_the_gear_of_their_mean(counts: list[int], expected: list[int]) -> None:
    site = ranks([[10] * count for count in counts], COUNTED)
    assert sorted(after(site, levelled(site))[0], reverse=True) == expected


@pytest.mark.parametrize(("left", "moves"), [(37, 0), (38, 1)])
def test_not_where_the_surplus_ends_soon_by_itself(left: int, moves: int) -> None:
    """A move costs 1 s, and is to save half as much again: 0.04 s a step."""
    cost = COUNTED._replace(per_prefill_token=0.1)
    assert len(levelled(ranks([[10] * 5, [10] * 2], cost, left))) == moves


@pytest.mark.parametrize(
    ("left", "moves"),
    [
        ([[10, 30, 900, 900, 900, 900], [900] * 4, [900]], 0),
        ([[900, 900, 10, 900, 900, 900], [900] * 4, [900]], 2),
        ([[30] * 6, [9000] * 4, [9000]], 0),
        ([[900] * 6, [1] * 4, [1]], 2),
    ],
    ids=[
        "the surplus of two has ended with the second", "the second of them ends late",
        "a rank at the gear does not count", "nor when it ends soon",
    ],
)  # fmt: skip
def test_the_gear_would_have_stayed_until_the_surplus_had_ended(left: list[list[int]], moves: int) -> None:
    """A move costs 1 s, and the gear of four in place of eight saves 0.04 s a step. KV tokens are level."""
    cost = COUNTED._replace(per_prefill_token=0.02)
    assert len(levelled(ranks([[50] * 6, [75] * 4, [300]], cost, left))) == moves


def test_a_copy_may_pay_where_a_prefill_does_not() -> None:
    cost = COUNTED._replace(per_prefill_token=1.0)
    assert levelled(ranks([[100] * 5, [100] * 2], cost)) == []
    assert levelled(ranks([[100] * 5, [100] * 2], cost._replace(per_copied_token=0.001)))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([[100, 10, 10, 10, 200], [100], [100]], [(0, 1)]),
        ([[100, 10, 10, 10, 200], [300], [110]], [(0, 2)]),
        ([[10, 20, 30, 40, 50], [500], [400]], [(0, 2)]),
        ([[10, 10, 10, 10, 10, 90], [20, 20, 20, 20], [20]], [(5, 2), (0, 2)]),
    ],
    ids=[
        "half of the gap, to the first of equals", "to the rank with fewest tokens",
        "the smallest, where others have more", "only to ranks below the gear",
    ],
)  # fmt: skip
def test_of_the_surplus_those_go_that_level_kv_tokens(
    tokens: list[list[int]], expected: list[tuple[int, int]]
) -> None:
    assert pairs(levelled(ranks(tokens, COUNTED))) == expected


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([[100, 100, 100], [100]], [200, 200]),
        ([[300, 100], [100, 100]], [400, 200]),
        ([[100, 100], [100, 100]], [200, 200]),
        ([[300, 50], [100, 50]], [350, 150]),
        ([[400, 400], [100, 100]], [500, 500]),
    ],
    ids=["a move", "they would change sides", "level", "nothing would be nearer", "an exchange at the gear"],
)
def test_kv_tokens_are_levelled(tokens: list[list[int]], expected: list[int]) -> None:
    site = ranks(tokens, READ)
    assert max(after(site, levelled(site))[1]) <= max(expected)
    assert min(after(site, levelled(site))[1]) >= min(expected)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([[300, 60, 300], [100]], [(0, 1)]),
        ([[300, 200, 100, 10], [50, 50, 50, 50]], [(0, 1), (4, 0), (5, 0), (3, 1)]),
        ([[500, 500], [100], [300]], [(0, 1), (2, 2)]),
        ([[200, 60, 40], [100, 1]], [(1, 1), (2, 1)]),
        ([[294, 2, 2, 2], [293, 2, 2]], []),
        ([[294, 2, 2, 2], [292, 2, 2]], [(1, 1)]),
    ],
    ids=[
        "what would change sides then stays",
        "what comes back is made up for",
        "from most to least",
        "half the gap",
        "a hundredth is level",
        "more is not",
    ],
)
def test_which_requests_level_kv_tokens(tokens: list[list[int]], expected: list[tuple[int, int]]) -> None:
    assert pairs(levelled(ranks(tokens, READ))) == expected


def test_nothing_comes_back_from_a_rank_without_a_place_for_what_would_go_there() -> None:
    """A place is free once what is there has left: half of an exchange would make the fullest rank fuller."""
    tokens = [[300, 200, 100], [50, 50, 50, 50]]
    assert pairs(levelled(ranks(tokens, READ, limit=5))) == [(0, 1), (3, 0), (4, 0)]
    assert levelled(ranks(tokens, READ, limit=4)) == []


@pytest.mark.parametrize(
    ("tokens", "limit", "expected"),
    [
        ([[100] * 4, [10] * 4], 6, [(0, 1), (4, 0), (1, 1), (5, 0)]),
        ([[100] * 4, [10] * 4], 5, [(0, 1), (4, 0)]),
        ([[200] * 4, [20] * 4, [10] * 4], 5, [(0, 2), (8, 0)]),
    ],
    ids=["two places", "one place", "one place, and another rank has one as well"],
)
def test_each_exchange_takes_a_place_of_both(
    tokens: list[list[int]], limit: int, expected: list[tuple[int, int]]
) -> None:
    assert pairs(levelled(ranks(tokens, READ, limit=limit))) == expected


def test_moves_are_told_to_level() -> None:
    assert levelled(ranks([[100, 100, 100], [100]], READ)) == [Move(RequestKey(0, 0), 1, reason="levelled")]


def test_what_moves_already_stays_out_of_it() -> None:
    site = ranks([[100, 100, 100, 100, 100], [100]], COUNTED)
    for uid in range(5):
        site.book.move(site.book.request(RequestKey(uid, 0)), None, False)
    assert levelled(site) == []


@given(
    st.lists(st.lists(st.integers(1, 5000), max_size=16), min_size=2, max_size=6),
    st.sampled_from([COUNTED, READ, StepCost(0.01, 0.001, 1e-6, 1e-4, GEARS), StepCost(0.01, 0.001, 1e-5)]),
    st.integers(1, 5000),
    st.integers(0, 2),
)
def test_no_step_becomes_longer(tokens: list[list[int]], cost: StepCost, left: int, free: int) -> None:
    """Every move has a place when it is told, also where the fullest rank has few."""
    site = ranks(tokens, cost, left, limit=max(1, *map(len, tokens)) + free)
    moves = levelled(site)
    arrivals = [move.engine for move in moves]
    assert all(arrivals.count(engine.number) <= engine.room for engine in site.engines)
    before, later = ((max(counts), max(kv)) for counts, kv in (after(site, []), after(site, moves)))
    assert cost.step(*later) <= cost.step(*before) + 1e-12
    assert cost.gear(later[0]) <= cost.gear(before[0])
    assert len({move.request for move in moves}) == len(moves)
    assert all(site.book.request(move.request).engine.number != move.engine for move in moves)  # type: ignore[union-attr]
