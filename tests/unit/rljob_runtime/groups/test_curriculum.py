"""Prompts by difficulty: pools, shares, and that a restart gives no place to two groups."""

import msgspec
import pytest

from rljob_api.data import Curriculum as Settings
from rljob_api.data import PoolShares
from rljob_runtime.groups.curriculum import Curriculum, CurriculumState, pool_of
from rljob_runtime.groups.ledger import Ledger

NONE = PoolShares(unsolved=0.0, hard=0.0, easy=0.0, solved=0.0)


def curriculum(rows: int = 4, shares: PoolShares = NONE, seed: int = 0) -> Curriculum:
    """On data that come in order, epoch after epoch."""
    return Curriculum(Settings(shares=shares), 1.0, seed, rows, lambda place: place % rows)


@pytest.mark.parametrize(
    ("rate", "pool"),
    [
        (None, "untried"), (0.0, "unsolved"), (0.125, "hard"), (0.25, "hard"), (0.3, "normal"),
        (0.7, "normal"), (0.75, "easy"), (0.875, "easy"), (1.0, "solved"),
    ],
)  # fmt: skip
def test_pools(rate: float | None, pool: str) -> None:
    assert pool_of(Settings(), rate) == pool


def test_untried_prompts_come_in_their_order() -> None:
    order = curriculum()
    assert [order.place(uid) for uid in range(4)] == [0, 1, 2, 3]
    assert order.place(2) == 2, "a group that is dispatched again has its place"


def test_prompts_of_a_pool_without_a_share_are_passed_over() -> None:
    order = curriculum()
    for uid in range(4):
        order.place(uid)
    order.scored(0, [1.0, 1.0])
    order.scored(1, [0.0, 1.0])
    order.scored(2, [0.0, 0.5])
    order.scored(3, [])
    assert [order.place(uid) for uid in range(4, 7)] == [5, 9, 13]
    assert order.metrics() == {
        "untried": 0, "unsolved": 2, "hard": 0, "normal": 1, "easy": 0, "solved": 1, "passed_over": 7,
    }  # fmt: skip


def test_the_newest_group_counts() -> None:
    order = curriculum()
    for uid in range(4):
        order.place(uid)
        order.scored(uid, [1.0])
    order.scored(2, [1.0, 0.0])
    assert order.place(4) == 6
    assert order.metrics()["solved"] == 3


def test_a_group_without_rewards_leaves_a_prompt_where_it_was() -> None:
    order = curriculum()
    order.place(0)
    order.scored(0, [0.0, 1.0])
    order.scored(0, [])
    assert order.metrics()["normal"] == 1


def test_prompts_whose_reward_always_fails_take_no_more_than_their_share() -> None:
    order = curriculum(rows=200, shares=PoolShares())
    rows = []
    for uid in range(600):
        rows.append(order.place(uid) % 200)
        order.scored(rows[-1], [] if rows[-1] < 10 else [1.0])
    assert sorted(rows[:200]) == list(range(200))
    assert sum(row < 10 for row in rows[200:]) < 40, "a tenth of what is generated"


def test_a_prompt_whose_first_group_is_under_way_is_passed_over_for_others() -> None:
    order, ledger = curriculum(), Ledger()
    for uid in range(4):
        order.place(uid)
    order.scored(2, [0.0, 1.0])
    assert [order.place(uid) for uid in (4, 5)] == [6, 10]
    saved = order.state(ledger)
    again = curriculum()
    again.restore(saved)
    for each in (order, again):
        each.scored(0, [0.0, 1.0])
        assert [each.place(uid) for uid in (6, 7, 8)] == [12, 14, 16]


def test_where_each_prompt_is_under_way_they_come_in_their_order_again() -> None:
    order = curriculum()
    assert [order.place(uid) % 4 for uid in range(12)] == [0, 1, 2, 3] * 3
    order.scored(1, [1.0])
    assert [order.place(uid) % 4 for uid in range(12, 18)] == [0, 2, 3, 0, 2, 3]


def test_a_checkpoint_that_has_no_rate_of_a_prompt_without_rewards_has_it_tried_again() -> None:
    order = curriculum()
    order.restore(CurriculumState(position=4, places={}, rates={0: 0.5, 1: 0.5, 2: 0.5}))
    assert [order.place(uid) for uid in (4, 5, 6, 7)] == [4, 5, 6, 7]
    assert [order.place(uid) for uid in (8, 9, 10, 11)] == [8, 9, 10, 12]


def test_shares_are_kept() -> None:
    order = curriculum(rows=1000, shares=PoolShares(solved=0.2))
    for uid in range(1000):
        order.place(uid)
        order.scored(uid, [1.0])
    # In ten epochs a fifth of 10,000 places is trained.
    places = [order.place(uid) for uid in range(1000, 3000)]
    assert 9_000 < places[-1] - 999 < 11_000
    assert places == sorted(set(places))


def test_no_group_is_held_up_where_every_prompt_is_solved() -> None:
    order = curriculum(rows=3)
    for uid in range(3):
        order.place(uid)
        order.scored(uid, [1.0])
    assert order.place(3) == 10_003
    assert order.place(4) == 20_004


def test_a_restart_gives_each_group_its_place_and_no_place_twice() -> None:
    order, ledger = curriculum(rows=8, shares=PoolShares(solved=0.5)), Ledger()
    for uid in range(12):
        order.place(uid)
        order.scored(uid % 8, [1.0] if uid % 2 else [0.0, 1.0])
    ledger.record(range(6))
    ledger.refuse(8, "equal_rewards")
    saved = msgspec.msgpack.encode(order.state(ledger))
    expected = [order.place(uid) for uid in (6, 7, 9, 10, 11, 12, 13, 14, 15)]
    # It went on for a while before it was lost.
    order.scored(0, [0.0])
    again = curriculum(rows=8, shares=PoolShares(solved=0.5))
    state = msgspec.msgpack.decode(saved, type=CurriculumState)
    assert set(state.places) == {6, 7, 9, 10, 11}
    again.restore(state)
    assert [again.place(uid) for uid in (6, 7, 9, 10, 11, 12, 13, 14, 15)] == expected
    again.restore(state)
    assert again.metrics()["solved"] == sum(rate == 1.0 for rate in state.rates.values())


def test_another_seed_passes_over_others() -> None:
    found = []
    for seed in (0, 1):
        order = curriculum(rows=8, shares=PoolShares(solved=0.5), seed=seed)
        for uid in range(8):
            order.place(uid)
            order.scored(uid, [1.0])
        found.append([order.place(uid) for uid in range(8, 40)])
    assert found[0] != found[1]
