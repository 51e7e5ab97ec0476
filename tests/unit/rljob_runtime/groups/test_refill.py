"""How many groups are refused."""

import pytest

from rljob_runtime.groups.refill import Refill
from rljob_runtime.groups.staleness import Bound, StalenessController


def test_so_many_are_refused_between_two_steps():
    refill = Refill(2, endless=True)
    assert [refill.refuse(0) for _ in range(4)] == [True, True, False, False]
    refill.step_trained()
    assert [refill.refuse(0) for _ in range(3)] == [True, True, False]


def test_in_an_epoch_a_group_is_refused_only_where_a_prompt_is_left():
    refill = Refill(2, endless=False)
    assert [refill.refuse(left) for left in (3, 0, 1, 1)] == [True, False, True, False]


def controller(endless: bool, most: int = 9, total: int = 7) -> StalenessController:
    """Steps of two groups, of which the first four are dispatched."""
    made = StalenessController(Bound(1, 2), total, refill=Refill(most, endless))
    for uid in range(4):
        made.dispatched(uid, 0)
    return made


@pytest.mark.parametrize(("endless", "total", "steps"), [(True, 7, 4), (False, 6, 3)])
def test_a_refused_group_gives_its_place_back(endless, total, steps):
    made = controller(endless)
    assert made.room(0) == 0
    assert made.refuse(2)
    assert (made.room(0), made.outstanding, made.ready) == (1, 3, 0)
    assert (made.total_groups, made.steps_left, made.done) == (total, steps, False)


def test_without_a_filter_nothing_is_refused():
    made = StalenessController(Bound(1, 2), 7)
    made.dispatched(0, 0)
    assert not made.refuse(0)
    assert made.outstanding == 1


def test_a_group_that_must_go_now_and_is_refused_is_not_waited_for():
    made = controller(endless=True)
    for uid in (0, 1):
        made.put(uid)
    made.finished([0, 1])
    for uid in (4, 5):
        made.dispatched(uid, 1)
        made.put(uid)
    assert made.select(1) is None, "groups 2 and 3 are at their last version"
    assert made.refuse(2)
    made.put(3)
    assert made.select(1) == (3, 4)


def test_each_step_may_refuse_as_many():
    made = controller(endless=True, most=1)
    assert [made.refuse(0), made.refuse(1)] == [True, False]
    for uid in (1, 2):
        made.put(uid)
    made.finished([1, 2])
    assert made.refuse(3)


def test_an_epoch_that_is_dispatched_to_its_end_refuses_nothing_more():
    """Its last step is never empty, and it is known which one it is."""
    made = controller(endless=False, total=5)
    assert made.refuse(0)
    made.dispatched(4, 0)
    assert not made.refuse(1)
    assert (made.total_groups, made.steps_left) == (4, 2)
