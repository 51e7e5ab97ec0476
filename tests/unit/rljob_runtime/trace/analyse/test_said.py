"""Which of the kept responses are shown."""

import pytest

from rljob_runtime.trace.analyse.said import (
    changed_most,
    most_seen,
    ordered,
    over_time,
    overview,
    spread,
    steps_of,
)
from rljob_runtime.trace.record.sample_log import SampleLine
from tests.support.runtime.said import line

STEP = [
    line(4, uid=1, index=0, reward=0.5, tokens=10),
    line(4, uid=1, index=1, reward=None, tokens=90),
    line(4, uid=2, index=0, reward=-1.0, tokens=20),
    line(4, uid=2, index=1, reward=2.0, tokens=30),
]


def places(rows: list[SampleLine]) -> list[tuple[int, int]]:
    return [(row.uid, row.index) for row in rows]


def test_orders() -> None:
    assert places(ordered(STEP, "best")) == [(2, 1), (1, 0), (2, 0)]
    assert places(ordered(STEP, "worst")) == [(2, 0), (1, 0), (2, 1)]
    assert places(ordered(STEP, "longest")) == [(1, 1), (2, 1), (2, 0), (1, 0)]
    assert sorted(places(ordered(STEP, "random"))) == sorted(places(STEP))
    assert len({tuple(places(ordered(STEP, "random", seed))) for seed in range(20)}) > 5


@pytest.mark.parametrize(("at_random", "count"), [(0, 3), (1, 4), (9, 4)])
def test_the_overview_shows_each_response_once(at_random: int, count: int) -> None:
    found = overview(STEP, at_random)
    assert [order for order, _ in found][:3] == ["best", "worst", "longest"]
    assert len({(row.uid, row.index) for _, row in found}) == len(found) == count
    assert places([row for _, row in found][:3]) == [(2, 1), (2, 0), (1, 1)]


def test_the_overview_of_few() -> None:
    assert overview([], 3) == []
    assert [order for order, _ in overview(STEP[1:2], 3)] == ["longest"]
    assert [order for order, _ in overview(STEP[:1], 3)] == ["best"]


def test_the_same_prompt_over_time() -> None:
    rows = [
        line(step, uid=10 * step + row, row=row, index=index, reward=step + reward)
        for step in range(20)
        for row in ([1, 2] if step % 2 else [2])
        for index, reward in enumerate((0.3, 0.1, 0.2))
    ]
    assert most_seen(rows) == 2
    assert most_seen(rows[:3]) is None and most_seen([]) is None
    found = over_time(rows, 2, 5)
    assert [row.step for row in found] == [0, 5, 10, 14, 19]
    assert all(row.index == 2 and row.row == 2 for row in found), "the one with the median reward"
    assert steps_of(over_time(rows, 1, 99)) == list(range(1, 20, 2))


@pytest.mark.parametrize(
    ("count", "most", "indices"),
    [(0, 3, []), (3, 3, [0, 1, 2]), (5, 3, [0, 2, 4]), (5, 1, [4]), (5, 0, []), (100, 2, [0, 99])],
)
def test_spread(count: int, most: int, indices: list[int]) -> None:
    assert spread(count, most) == indices


REWARDS = {
    # Row: mean rewards at steps 0, 10, 20; None where it was not kept, or has no reward.
    "one rose, one fell": (
        {0: (0.0, 1.0, 0.5), 1: (0.0, 0.0, 0.25), 2: (1.0, 0.0, 0.75)},
        [("rose", 0), ("fell", 2)],
    ),
    "none fell": ({0: (0.0, 0.0, 0.0), 1: (0.0, 0.0, 0.5)}, [("rose", 1)]),
    "none changed": ({0: (0.0, 1.0, 0.0)}, []),
    "of equals the first": ({3: (0.0, None, 1.0), 1: (0.0, None, 1.0)}, [("rose", 1)]),
    "kept once": ({0: (None, None, 1.0)}, []),
    "nothing": ({}, []),
}


@pytest.mark.parametrize("name", REWARDS)
def test_whose_reward_changed_most(name: str) -> None:
    rewards, found = REWARDS[name]
    rows = [
        # Of two responses, whose mean counts.
        line(10 * place, uid=row, index=index, reward=reward + spread)
        for row, of_steps in rewards.items()
        for place, reward in enumerate(of_steps)
        if reward is not None
        for index, spread in enumerate((-0.5, 0.5))
    ]
    assert changed_most(rows) == found
    assert changed_most([line(step, uid=1, reward=None) for step in (0, 10)]) == []
