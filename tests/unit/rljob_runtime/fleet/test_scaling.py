"""Which workers start, are released and come back."""

from typing import Any

import pytest

from rljob_runtime.fleet.scaling import Change, WorkerSlot, decide


def serving(key: str, requests: int = 0, since: float = 0.0, **more: Any) -> WorkerSlot:
    return WorkerSlot(key, f"pod-{key}", "serving", requests, since, **more)


def free(key: str, **more: Any) -> WorkerSlot:
    return WorkerSlot(key, f"pod-{key}", **more)


def starting(key: str) -> WorkerSlot:
    return WorkerSlot(key, f"pod-{key}", "starting")


CASES: dict[str, tuple[int, list[WorkerSlot], set[str], Change]] = {
    "nothing to do": (2, [serving("a"), serving("b")], set(), Change()),
    "a new pod gets a worker": (2, [serving("a"), free("b")], set(), Change(start=("b",))),
    "all start at first": (2, [free("a"), free("b")], set(), Change(start=("a", "b"))),
    "fewer pods than asked for": (4, [serving("a")], set(), Change()),
    "more pods than asked for: the surplus is offered without a start": (
        1,
        [serving("a", 3), free("b")],
        set(),
        Change(release=("b",)),
    ),
    "the one with the fewest requests goes": (
        1,
        [serving("a", 3), serving("b", 1)],
        set(),
        Change(release=("b",)),
    ),
    "of equals the youngest goes": (
        1,
        [serving("a", 2, since=5.0), serving("b", 2, since=9.0)],
        set(),
        Change(release=("b",)),
    ),
    "one that only starts goes before one that serves": (
        1,
        [serving("a", 0, since=9.0), starting("b")],
        set(),
        Change(release=("b",)),
    ),
    "a slot without a worker goes before one that starts": (
        1,
        [starting("a"), free("b")],
        set(),
        Change(release=("b",)),
    ),
    "one whose worker leaves goes before one that starts": (
        1,
        [starting("a"), WorkerSlot("b", "pod-b", "leaving")],
        set(),
        Change(release=("b",)),
    ),
    "of several that were released the one with the most to lose comes back": (
        2,
        [serving("a"), free("b", released=True), WorkerSlot("c", "pod-c", "leaving", 4, released=True)],
        set(),
        Change(rejoin=("c",)),
    ),
    "all may go": (0, [serving("a"), serving("b")], set(), Change(release=("a", "b"))),
    "what is released stays released": (1, [serving("a"), free("b", released=True)], set(), Change()),
    "asked for again, it comes back": (
        2,
        [serving("a"), free("b", released=True)],
        set(),
        Change(rejoin=("b",), start=("b",)),
    ),
    "asked for again, it has no worker while the operator may take it": (
        2,
        [serving("a"), free("b", released=True, offered=True)],
        set(),
        Change(rejoin=("b",)),
    ),
    "a pod whose offer is not withdrawn yet": (
        2,
        [serving("a"), free("b", offered=True)],
        set(),
        Change(),
    ),
    "one that still leaves starts anew only when it has left": (
        2,
        [serving("a"), WorkerSlot("b", "pod-b", "leaving", released=True)],
        set(),
        Change(rejoin=("b",)),
    ),
    "a pod that is being removed does not come back": (
        2,
        [serving("a"), free("b", released=True)],
        {"pod-b"},
        Change(),
    ),
    "a pod that is being removed without having been released is left at once": (
        1,
        [serving("a", 1), serving("b", 9)],
        {"pod-b"},
        Change(release=("b",)),
    ),
    "a removed pod's slot is taken by a released one": (
        1,
        [serving("a", 1), free("b", released=True)],
        {"pod-a"},
        Change(release=("a",), rejoin=("b",), start=("b",)),
    ),
    "no worker starts on a pod that is being removed": (2, [free("a")], {"pod-a"}, Change(release=("a",))),
    "several slots of one machine": (
        2,
        [WorkerSlot("n/0", ""), WorkerSlot("n/1", "")],
        set(),
        Change(start=("n/0", "n/1")),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_decisions(case):
    desired, slots, doomed, change = CASES[case]
    assert decide(desired, slots, doomed) == change
