"""When the next plan is made."""

import math

import pytest

from rljob_runtime.routing.book import EngineState
from rljob_runtime.routing.plan_times import PlanTimes
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.routing.roles import Roles

PLAIN, POOLED = Roles(), Roles(pooled=True, heavy=frozenset({0}))


def engine(number: int, joined: bool = True) -> EngineState:
    return EngineState(number, EngineShape("heavy" if number == 0 else "fast", 4), joined)


@pytest.mark.parametrize(
    ("seconds", "under_way", "pause"),
    [(10, 3, 0.5), (3600, 3, 36), (10, 5000, 2), (10, 0, 0)],
    ids=["as often as may be", "work for an hour", "many groups", "nothing under way"],
)
def test_the_more_there_is_to_do_the_later_is_the_next_plan(
    seconds: float, under_way: int, pause: float
) -> None:
    times = PlanTimes(0.5)
    assert times.next == -math.inf
    times.made(100.0, seconds, under_way)
    assert (times.next, times.plans) == (100.0 + pause, 1)


@pytest.mark.parametrize(
    ("roles", "came", "under_way", "at_once"),
    [(POOLED, 3, 8, True), (POOLED, 2, 8, False), (PLAIN, 8, 8, False)],
    ids=["a quarter is new", "not more than a quarter", "no heavy pool"],
)
def test_many_new_groups_beside_a_heavy_pool_are_planned_at_once(
    roles: Roles, came: int, under_way: int, at_once: bool
) -> None:
    times = PlanTimes(1.0)
    times.made(100.0, 0.0, under_way - came)
    for left in reversed(range(came)):
        times.group_came(under_way - left, roles)
    assert (times.next == -math.inf) is at_once


@pytest.mark.parametrize(
    ("roles", "changed", "at_once"),
    [
        (POOLED, [engine(4)], False),
        (POOLED, [engine(4), engine(5)], True),
        (PLAIN, [engine(4), engine(5)], False),
        (PLAIN, [engine(0, False)], False),
        (PLAIN, [engine(0, False), engine(0)], True),
        (POOLED, [engine(0, False)], True),
        (POOLED, [engine(1, False)], False),
        (POOLED, [engine(1, False), engine(2, False), engine(3, False)], True),
    ],
    ids=[
        "one more", "two more beside a heavy pool", "two more", "one that is nothing special leaves",
        "a pool has an engine again", "nobody for long ones", "one less", "nobody for others",
    ],
)  # fmt: skip
def test_engines_that_come_or_go_are_planned_at_once_where_it_matters(
    roles: Roles, changed: list[EngineState], at_once: bool
) -> None:
    """Beside a heavy engine and three others."""
    times = PlanTimes(1.0)
    for number in range(4):
        times.engine_changed(engine(number), PLAIN)
    times.made(100.0, 0.0, 3)
    for each in changed:
        times.engine_changed(each, roles)
    assert (times.next == -math.inf) is at_once
