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


def ranks(tokens: Sequence[Sequence[int]], cost: StepCost, left: int = 1000, limit: int = 16) -> Engines:
    """Ranks with requests that have so many tokens, prompts included."""
    site = Engines([[left] * len(each) for each in tokens], limit=limit, prompt=1, cost=cost)
    for uid, count in enumerate(count for each in tokens for count in each):
        site.book.progress(site.book.request(RequestKey(uid, 0)), count - 1)
    return site


def levelled(site: Engines) -> list[Move]:
    return level_lockstep(site.engines, site.remaining)


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


def test_not_where_the_surplus_ends_soon_by_itself() -> None:
    cost = COUNTED._replace(per_prefill_token=0.01)
    assert levelled(ranks([[100] * 5, [100] * 2], cost, left=1000))
    assert levelled(ranks([[100] * 5, [100] * 2], cost, left=30)) == []


def test_a_copy_may_pay_where_a_prefill_does_not() -> None:
    cost = COUNTED._replace(per_prefill_token=1.0)
    assert levelled(ranks([[100] * 5, [100] * 2], cost)) == []
    assert levelled(ranks([[100] * 5, [100] * 2], cost._replace(per_copied_token=0.001)))


def test_of_the_surplus_those_go_that_level_kv_tokens() -> None:
    site = ranks([[100, 10, 10, 10, 200], [100], [100]], COUNTED._replace(per_kv_token=1e-9))
    moves = levelled(site)
    assert moves[0].request in (RequestKey(0, 0), RequestKey(4, 0))


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


def test_what_moves_already_stays_out_of_it() -> None:
    site = ranks([[100, 100, 100, 100, 100], [100]], COUNTED)
    for uid in range(5):
        site.book.move(site.book.request(RequestKey(uid, 0)), None, False)
    assert levelled(site) == []


@given(
    st.lists(st.lists(st.integers(1, 5000), max_size=16), min_size=2, max_size=6),
    st.sampled_from([COUNTED, READ, StepCost(0.01, 0.001, 1e-6, 1e-4, GEARS), StepCost(0.01, 0.001, 1e-5)]),
    st.integers(1, 5000),
)
def test_no_step_becomes_longer(tokens: list[list[int]], cost: StepCost, left: int) -> None:
    site = ranks(tokens, cost, left)
    moves = levelled(site)
    before, later = ((max(counts), max(kv)) for counts, kv in (after(site, []), after(site, moves)))
    assert cost.step(*later) <= cost.step(*before) + 1e-12
    assert cost.gear(later[0]) <= cost.gear(before[0])
    assert len({move.request for move in moves}) == len(moves)
    assert all(site.book.request(move.request).engine.number != move.engine for move in moves)  # type: ignore[union-attr]
