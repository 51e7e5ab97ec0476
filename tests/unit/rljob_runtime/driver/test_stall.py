"""What counts as progress of a step that waits for its groups."""

from dataclasses import replace

import pytest

from rljob_runtime.driver.stall import Activity, StallWatch

START = Activity((("fast-0", 100), ("fast-1", 0)), rewards=5, groups=2)
CHANGES = {
    "a token": replace(START, generated_tokens=(("fast-0", 101), ("fast-1", 0))),
    "an engine that is new": replace(START, generated_tokens=(*START.generated_tokens, ("heavy-0", 0))),
    "a reward": replace(START, rewards=6),
    "a group": replace(START, groups=3),
}


def test_the_same_for_too_long_is_a_stall() -> None:
    watch = StallWatch(60, now=1000)
    looks = [(1010, False), (1030, False), (1069, False), (1070, True)]
    assert [(now, watch.stalled(START, now)) for now, _ in looks] == looks


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_begins_the_time_anew(change: str) -> None:
    watch = StallWatch(60, now=0)
    assert not watch.stalled(START, 10)
    assert not watch.stalled(CHANGES[change], 69)
    assert not watch.stalled(CHANGES[change], 128)
    assert watch.stalled(CHANGES[change], 129)


def test_what_has_deadlines_of_its_own_is_waited_for() -> None:
    watch = StallWatch(60, now=0)
    busy = replace(START, busy=True)
    assert not any(watch.stalled(busy, now) for now in range(0, 1000, 10))
    assert not watch.stalled(START, 1040)
    assert watch.stalled(START, 1100)


def test_an_engine_that_answers_now_and_then_does_not_move_by_that() -> None:
    watch = StallWatch(60, now=0)
    silent = replace(START, generated_tokens=START.generated_tokens[:1])
    looks = [(silent if now % 20 else START, now) for now in range(10, 80, 10)]
    assert [watch.stalled(activity, now) for activity, now in looks] == [False] * 7
    # Seen for the first time at 20 s.
    assert watch.stalled(START, 80)
