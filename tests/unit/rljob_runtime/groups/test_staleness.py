"""The staleness policy, rule by rule."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.groups.staleness import Bound, StalenessController, choose_batch


@pytest.mark.parametrize(
    ("max_staleness", "groups", "steps", "version", "admitted"),
    [
        (0, 8, 1, 0, 8),
        (1, 8, 1, 0, 16),
        (1, 8, 1, 3, 40),
        (2, 8, 1, 0, 24),
        (0.5, 8, 1, 0, 12),
        (0.2, 64, 4, 0, 307),
        (0.2, 64, 4, 2, 819),
        (0, 64, 4, 1, 512),
    ],
)
def test_admission_is_areals_capacity(max_staleness, groups, steps, version, admitted):
    assert Bound(max_staleness, groups, steps).admitted_at(version) == admitted


@pytest.mark.parametrize(
    ("max_staleness", "versions", "most_outstanding"), [(0, 0, 8), (0.5, 1, 12), (1, 1, 16), (2, 2, 24)]
)
def test_a_bound_in_versions_and_in_groups(max_staleness, versions, most_outstanding):
    bound = Bound(max_staleness, 8)
    assert (bound.versions, bound.most_outstanding) == (versions, most_outstanding)


def test_steps_of_a_version():
    bound = Bound(1, groups_per_step=8, steps_per_version=4)
    assert [bound.version_at(step) for step in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("first_step", "version", "slots"),
    [(0, 0, 32), (3, 0, 8), (4, 0, 0), (9, 0, 0), (4, 1, 32), (5, 2, 56)],
)
def test_slots_up_to_the_last_step_of_a_version(first_step, version, slots):
    assert Bound(1, groups_per_step=8, steps_per_version=4).slots(first_step, version) == slots


@pytest.mark.parametrize(
    ("case", "step", "ready", "deadlines", "size", "batch"),
    [
        ("too few are ready", 0, [0], {0: 1, 1: 1}, 2, None),
        ("the oldest ready ones go", 0, [3, 1, 2], {0: 1, 1: 1, 2: 1, 3: 1}, 2, (1, 2)),
        ("a group at its last version is waited for", 1, [1, 2], {0: 1, 1: 1, 2: 2, 3: 2}, 2, None),
        ("and goes with the next oldest", 1, [0, 1, 2], {0: 1, 1: 1, 2: 2, 3: 2}, 2, (0, 1)),
        ("the nearest deadline goes before the older uid", 0, [0, 5], {0: 2, 5: 0}, 1, (5,)),
        (
            "leftovers that still have slots do not hold a batch",
            0,
            [2, 3],
            {0: 1, 1: 1, 2: 1, 3: 1},
            2,
            (2, 3),
        ),
        ("the last, smaller batch", 4, [8], {8: 5}, 1, (8,)),
        (
            "of several left over each needs a slot of its own",
            0,
            [3, 4],
            {0: 1, 1: 1, 2: 1, 3: 1, 4: 1},
            2,
            None,
        ),
        ("uids of one deadline go in order of age", 0, [9, 4, 7], {4: 1, 7: 1, 9: 1}, 2, (4, 7)),
    ],
)
def test_batch(case, step, ready, deadlines, size, batch):
    assert selected(Bound(1, 2), step, ready, deadlines, size) == batch


def selected(
    bound: Bound, step: int, ready: Sequence[int], deadlines: Mapping[int, int], size: int
) -> tuple[int, ...] | None:
    """What a controller selects for `step`: `deadlines` of the outstanding groups by uid, `ready` of them in
    the order in which they were put, `size` groups to a step."""
    total = size if size < bound.groups_per_step else 1000
    controller = StalenessController(bound, total)
    for uid, deadline in deadlines.items():
        controller.dispatched(uid, deadline - bound.versions)
    for uid in ready:
        controller.put(uid)
    assert controller.batch_size() == size, "the case asks for another size than the bound's"
    return controller.select(step)


@given(
    deadlines=st.lists(st.integers(0, 6), max_size=12),
    ready=st.sets(st.integers(0, 11)),
    groups_per_step=st.integers(1, 4),
    step=st.integers(0, 6),
)
def test_the_counts_decide_as_a_look_at_each_group_does(deadlines, ready, groups_per_step, step):
    bound, by_uid = Bound(2, groups_per_step), dict(enumerate(deadlines))
    there = [uid for uid in by_uid if uid in ready]
    expected: tuple[int, ...] | None = None
    if len(there) >= groups_per_step:
        batch = sorted(there, key=lambda uid: (by_uid[uid], uid))[:groups_per_step]
        left = sorted(deadline for uid, deadline in by_uid.items() if uid not in batch)
        in_time = all(n <= bound.slots(step + 1, deadline) for n, deadline in enumerate(left, start=1))
        expected = tuple(sorted(batch)) if in_time else None
    assert selected(bound, step, there, by_uid, groups_per_step) == expected


def test_room_counts_what_is_trained_and_outstanding():
    controller = StalenessController(Bound(1, 2), total_groups=7)
    assert controller.room(version=0) == 4
    for uid in range(3):
        controller.dispatched(uid, version=0)
    assert controller.room(version=0) == 1
    for uid in range(3):
        controller.put(uid)
    controller.finished([0, 1])
    assert controller.room(version=0) == 1
    assert controller.room(version=1) == 3
    assert controller.room(version=9) == 4, "never beyond the job's total"


def test_a_step_awaits_groups_while_fewer_are_outstanding_than_it_trains():
    controller = StalenessController(Bound(1, 2), total_groups=3)
    seen = [controller.awaits_group(0)]
    for uid in range(3):
        controller.dispatched(uid, version=0)
        seen.append(controller.awaits_group(0))
    assert seen == [True, True, False, False]
    for uid in range(2):
        controller.put(uid)
    controller.finished([0, 1])
    assert (controller.batch_size(), controller.awaits_group(1)) == (1, False), "the last step is smaller"


def test_no_group_is_awaited_while_the_version_of_the_next_step_is_on_its_way():
    """Dispatched a moment later, it may be trained a version later."""
    controller = StalenessController(Bound(1, 2), total_groups=8)
    for uid in range(2):
        controller.dispatched(uid, version=0)
        controller.put(uid)
    controller.taken(0, [0, 1])
    controller.finished([0, 1])
    assert (controller.awaits_group(0), controller.awaits_group(1)) == (False, True)


def test_room_leaves_every_outstanding_group_a_place_in_the_queue():
    controller = StalenessController(Bound(4, 2), total_groups=100, capacity_groups=3)
    assert controller.room(0) == 3
    controller.dispatched(0, 0)
    assert controller.room(0) == 2


def test_there_is_never_less_than_no_room():
    controller = StalenessController(Bound(0, 2), total_groups=10)
    for uid in range(5):
        controller.dispatched(uid, 0)
    assert controller.room(0) == 0


def test_a_job_that_goes_on_counts_what_is_trained():
    controller = StalenessController(Bound(1, 2), total_groups=7, trained=5)
    assert controller.room(version=9) == 2
    assert controller.batch_size() == 2
    controller.dispatched(5, version=2)
    assert (controller.outstanding, controller.ready) == (1, 0)
    controller.put(5)
    assert (controller.outstanding, controller.ready) == (1, 1)
    controller.finished([5])
    assert (controller.outstanding, controller.ready, controller.trained) == (0, 0, 6)
    assert controller.batch_size() == 1, "the last batch is smaller"
    controller.dispatched(6, version=3)
    controller.put(6)
    assert controller.select(step=3) == (6,)
    controller.finished([6])
    assert controller.batch_size() == 0


def test_the_controller_waits_for_a_group_at_its_last_version():
    """Bound 1, version 0: groups 0 and 1 must be trained by version 1, of which step 1 is the last."""
    controller = StalenessController(Bound(1, 2), total_groups=10)
    for uid, version in ((0, 0), (1, 0), (2, 1), (3, 1)):
        controller.dispatched(uid, version)
    assert [controller.dispatch_version(uid) for uid in range(4)] == [0, 0, 1, 1]
    for uid in (1, 2, 3):
        controller.put(uid)
    assert controller.select(step=1) is None
    controller.put(0)
    assert controller.select(step=1) == (0, 1)


def test_a_group_ends_once():
    controller = StalenessController(Bound(1, 2), total_groups=10)
    controller.dispatched(0, 0)
    with pytest.raises(ValueError, match="outstanding already"):
        controller.dispatched(0, 0)
    with pytest.raises(ValueError, match="not dispatched"):
        controller.put(1)
    controller.put(0)
    controller.finished([0])
    with pytest.raises(KeyError):
        controller.finished([0])


@pytest.mark.parametrize(
    ("outstanding", "batch"),
    [({1: 4, 2: 2}, {1: 2}), ({1: 4, 2: 3}, None), ({1: 5, 2: 1}, None), ({1: 2, 2: 4}, {1: 2})],
    ids=["just enough slots", "one too many for both", "one too many for the first", "enough"],
)
def test_groups_of_all_earlier_deadlines_take_slots_too(outstanding, batch):
    """Two groups to a step. After step 0, one step is left up to version 1, and two up to version 2."""
    assert choose_batch(Bound(2, 2), 0, {1: 2}, outstanding, 2) == batch


def test_groups_of_a_deadline_are_waited_for_after_others_of_it_were_trained():
    """Groups 0 to 3 must be trained by version 1: step 1 waits for 2 and 3, whatever else is ready."""
    controller = StalenessController(Bound(1, 2), total_groups=10)
    for uid, version in ((0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 1)):
        controller.dispatched(uid, version)
    for uid in (0, 1, 4, 5):
        controller.put(uid)
    assert controller.select(step=0) == (0, 1)
    controller.finished([0, 1])
    assert controller.select(step=1) is None
    for uid in (2, 3):
        controller.put(uid)
    assert controller.select(step=1) == (2, 3)
    controller.finished([2, 3])
    assert controller.select(step=2) == (4, 5)


def one_by_one(bound, step, ready, deadlines, size):
    """The batch of step `step`, found by looking at each group."""
    ordered = sorted(ready, key=lambda uid: (deadlines[uid], uid))
    if len(ordered) < size:
        return None
    batch = ordered[:size]
    left = sorted(deadline for uid, deadline in deadlines.items() if uid not in batch)
    in_time = all(count <= bound.slots(step + 1, deadline) for count, deadline in enumerate(left, 1))
    return tuple(sorted(batch)) if in_time else None


@given(
    st.lists(st.tuples(st.sampled_from(["dispatch", "put", "train"]), st.integers(0, 3)), max_size=60),
    st.integers(0, 2),
)
def test_what_is_selected_is_what_a_look_at_each_group_selects(operations, staleness):
    controller = StalenessController(Bound(staleness, 2), total_groups=1000)
    deadlines, ready, step = {}, [], 0
    for uid, (operation, number) in enumerate(operations):
        waiting = [known for known in deadlines if known not in ready]
        expected = one_by_one(controller.bound, step, ready, deadlines, 2)
        assert controller.select(step) == expected
        if operation == "dispatch":
            controller.dispatched(uid, step + number // 2)
            deadlines[uid] = step + number // 2 + staleness
        elif operation == "put" and waiting:
            controller.put(waiting[number % len(waiting)])
            ready.append(waiting[number % len(waiting)])
        elif operation == "train" and expected is not None:
            controller.finished(expected)
            step += 1
            ready = [known for known in ready if known not in expected]
            deadlines = {known: last for known, last in deadlines.items() if known not in expected}
        assert (controller.outstanding, controller.ready) == (len(deadlines), len(ready))


def test_what_is_kept_does_not_grow_with_the_job():
    controller = StalenessController(Bound(1, 2), total_groups=1000)
    for step in range(100):
        for uid in (2 * step, 2 * step + 1):
            controller.dispatched(uid, step)
            controller.put(uid)
        controller.finished((2 * step, 2 * step + 1))
    assert controller.outstanding == controller.ready == 0
    assert len(controller._outstanding) == len(controller._ready) == 0


def test_with_masks_a_batch_is_taken_as_soon_as_it_is_ready_oldest_first():
    """Groups 0 and 1 are beyond their last version, and 0 is not ready: no step waits for it."""
    controller = StalenessController(Bound(1, 2, masks=True), total_groups=10)
    for uid, version in ((0, 0), (1, 0), (2, 2), (3, 3)):
        controller.dispatched(uid, version)
    controller.put(3)
    assert controller.select(step=4) is None, "one is ready, and a step trains two"
    controller.put(2)
    assert controller.select(step=4) == (2, 3)
    controller.put(1)
    assert controller.select(step=4) == (1, 2)


def test_with_masks_groups_under_way_hold_their_places():
    controller = StalenessController(Bound(1, 2, masks=True), total_groups=100)
    for uid in range(4):
        controller.dispatched(uid, 0)
    assert controller.room(0) == 0
    for uid in (1, 3):
        controller.put(uid)
    controller.finished([1, 3])
    assert (controller.room(0), controller.room(1), controller.outstanding) == (0, 2, 2)
