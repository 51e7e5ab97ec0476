"""Which groups are aborted, and when their prompts come again."""

import pytest

from rljob_runtime.groups.oversampling import OverSampling
from rljob_runtime.groups.refill import Refill
from rljob_runtime.groups.staleness import Bound, StalenessController


def begun(*deadlines: int, surplus: int = 2) -> OverSampling:
    """Groups with uids from 0 and these deadlines."""
    made = OverSampling(surplus)
    for uid, deadline in enumerate(deadlines):
        made.dispatched(uid, deadline)
    return made


@pytest.mark.parametrize(
    ("case", "deadlines", "complete", "slots", "aborted"),
    [
        ("none is complete", [0, 0, 0], [], {0: 2}, []),
        ("a slot is left", [0, 0, 0], [1], {0: 2}, []),
        ("the slots are taken", [0, 0, 0], [1, 2], {0: 2}, [0]),
        ("later steps have slots", [0, 0, 0, 1, 1], [1, 2], {0: 2, 1: 4}, [0]),
        ("all steps are full", [0, 0, 0, 1, 1, 1], [1, 2, 3, 4], {0: 2, 1: 4}, [0, 5]),
        ("later groups take no slots of earlier steps", [0, 0, 1, 1], [2, 3], {0: 2, 1: 4}, []),
        ("but the slots of all steps", [0, 0, 1, 1], [2, 3], {0: 1, 1: 2}, [0, 1]),
        ("the time of an earlier deadline is over", [0, 1], [], {0: 0, 1: 2}, [0]),
    ],
)
def test_groups_are_aborted_where_no_step_has_a_slot_for_them(case, deadlines, complete, slots, aborted):
    made = begun(*deadlines)
    for uid in complete:
        made.claim(uid, deadlines[uid])
    assert made.abort(slots.__getitem__, version=0) == aborted
    assert made.held == len(aborted)
    assert made.abort(slots.__getitem__, version=0) == [], "once"


@pytest.mark.parametrize(("version", "due"), [(0, 2), (1, 2), (2, 2), (3, 5), (7, 8)])
def test_an_aborted_prompt_goes_first_within_two_versions(version, due):
    made = begun(9, 9)
    assert made.abort(lambda deadline: 0, version) == [0, 1]
    assert made.next_held(due, any_time=False) is None, "its requests still run"
    made.ended(1)
    assert made.next_held(due - 1, any_time=False) is None
    assert made.next_held(due - 1, any_time=True) == 1
    assert made.next_held(due, any_time=False) == 1
    made.ended(0)
    assert made.next_held(due, any_time=False) == 0, "the first that was aborted"


def test_a_prompt_is_aborted_once():
    made = begun(0)
    assert made.abort(lambda deadline: 0, 0) == [0]
    made.ended(0)
    made.dispatched(0, 2)
    assert made.again(0) and made.held == 0
    assert made.full(2, slots=1) and not made.full(1, slots=1), "it has its slot from the beginning"
    assert made.abort(lambda deadline: 0, 2) == []
    made.taken(0, 2)
    assert not made.again(0) and not made.claimed


def test_every_third_version_begins_no_surplus():
    assert [OverSampling(3).surplus_at(version) for version in range(7)] == [3, 3, 0, 3, 3, 0, 3]


def controller(total: int = 100, staleness: float = 0, **more) -> StalenessController:
    """Steps of four groups, with a surplus of one."""
    return StalenessController(Bound(staleness, 4), total, over=OverSampling(1), **more)


def test_a_step_takes_the_first_that_are_complete_and_the_rest_is_aborted():
    made = controller()
    assert made.room(0) == 5
    for uid in range(5):
        made.dispatched(uid, 0)
    for uid in (4, 0, 2):
        made.claim(uid)
        made.put(uid)
        assert made.surplus() == []
    made.claim(3)
    assert made.surplus() == [1], "before the last one is in the queue"
    made.put(3)
    assert (made.outstanding, made.room(0), made.held_prompt(0)) == (4, 0, None)
    assert made.select(0) == (0, 2, 3, 4)
    made.taken(0, (0, 2, 3, 4))
    made.finished((0, 2, 3, 4))
    made.ended(1)
    assert (made.room(0), made.room(1)) == (0, 5), "the steps of version 0 are over"
    assert made.held_prompt(1) is None
    assert made.held_prompt(2) == 1


def test_what_was_aborted_is_waited_for():
    made = controller()
    for uid in range(5):
        made.dispatched(uid, 0)
    for uid in range(4):
        made.put(uid)
    assert made.surplus() == [4]
    made.ended(4)
    for step in (0, 1):
        uids = tuple(range(4)) if step == 0 else tuple(range(10, 14))
        if step:
            for uid in uids:
                made.dispatched(uid, step)
                made.put(uid)
        assert made.select(step) == uids
        made.taken(step, uids)
        made.finished(uids)
    assert made.held_prompt(2) == 4
    made.dispatched(4, 2)
    for uid in (20, 21, 22):
        made.dispatched(uid, 2)
        made.put(uid)
    assert (made.room(2), made.surplus(), made.select(2)) == (0, [], None)
    made.put(4)
    assert made.select(2) == (4, 20, 21, 22)


def test_a_step_does_not_leave_out_more_than_the_surplus():
    """Groups 0 to 3 are at their last version, and four later ones are complete: one of the first may be
    aborted, not four."""
    made = controller(staleness=1)
    for uid in range(8):
        made.dispatched(uid, 0)
    for uid in range(4, 8):
        made.put(uid)
    made.taken(0, range(4, 8))
    made.finished(range(4, 8))
    for uid in range(8, 12):
        made.dispatched(uid, 1)
        made.put(uid)
    assert made.select(1) is None
    for uid in (0, 2, 3):
        made.put(uid)
    assert made.select(1) == (0, 2, 3, 8)
    made.taken(1, (0, 2, 3, 8))
    assert made.surplus() == [1]


def test_at_the_end_of_the_job_what_was_aborted_is_all_that_is_left():
    made = controller(total=5)
    for uid in range(5):
        made.dispatched(uid, 0)
    for uid in range(4):
        made.put(uid)
    assert made.surplus() == [4]
    made.taken(0, range(4))
    made.finished(range(4))
    made.ended(4)
    assert (made.room(1), made.held_prompt(1)) == (0, 4), "no other prompt, and this one before its time"


def test_a_refused_group_takes_no_slot():
    made = controller(refill=Refill(9, endless=True))
    for uid in range(5):
        made.dispatched(uid, 0)
    for uid in range(3):
        made.put(uid)
    assert made.refuse(3)
    assert made.surplus() == []
    made.put(4)
    assert made.surplus() == [] and made.select(0) == (0, 1, 2, 4)


def test_without_over_sampling_nothing_is_aborted():
    made = StalenessController(Bound(0, 4), 100)
    for uid in range(4):
        made.dispatched(uid, 0)
        made.claim(uid)
    made.taken(0, range(4))
    made.ended(0)
    assert (made.surplus(), made.held_prompt(5), made.again(0)) == ([], None, False)


def test_what_is_refused_takes_no_slot_whether_it_was_aborted_before_or_not():
    made = begun(3, 3)
    made.refused(0, 3)
    assert not made.claimed and made.abort(lambda deadline: 0, 0) == [1]
    made = begun(0, 0)
    assert made.abort(lambda deadline: 0, 0) == [0, 1]
    for uid in (0, 1):
        made.ended(uid)
        made.dispatched(uid, 2)
    assert made.claimed == {2: 2}
    made.refused(0, 2)
    assert made.claimed == {2: 1} and (made.again(0), made.again(1)) == (False, True)
    made.refused(1, 2)
    assert not made.claimed and not made.again(1)


def test_the_controller_passes_on_what_becomes_of_each_group():
    over = OverSampling(1)
    made = StalenessController(Bound(0, 4), 100, refill=Refill(9, endless=True), over=over)
    for uid in range(5):
        made.dispatched(uid, 0)
    made.put(0)
    assert made.refuse(1) and over.claimed == {0: 1}
    made.dispatched(5, 0)
    for uid in (2, 3, 4):
        made.put(uid)
    assert made.surplus() == [5]
    made.ended(5)
    made.taken(0, (0, 2, 3, 4))
    made.finished((0, 2, 3, 4))
    made.dispatched(5, 2)
    assert made.again(5) and not made.again(0)
    made.taken(2, (5,))
    assert not made.again(5) and not over.claimed
