"""The staleness policy, rule by rule."""

import pytest

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
    ],
)
def test_batch(case, step, ready, deadlines, size, batch):
    assert choose_batch(Bound(1, 2), step, ready, deadlines, size) == batch


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


def test_room_leaves_every_outstanding_group_a_place_in_the_queue():
    controller = StalenessController(Bound(4, 2), total_groups=100, capacity_groups=3)
    assert controller.room(0) == 3
    controller.dispatched(0, 0)
    assert controller.room(0) == 2


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
