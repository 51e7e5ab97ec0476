"""Whatever the pods and the desired state are, scaling is right, and enough once."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.fleet.scaling import Change, WorkerSlot, decide

slots = st.lists(
    st.builds(
        WorkerSlot,
        key=st.uuids().map(str),
        pod=st.uuids().map(str),
        occupant=st.sampled_from(["nobody", "starting", "serving", "leaving"]),
        requests=st.integers(0, 5),
        since=st.floats(0, 100),
        released=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda slot: slot.key,
)


def carried_out(found: list[WorkerSlot], change: Change) -> list[WorkerSlot]:
    """The slots once everything of `change` has begun."""
    after = []
    for slot in found:
        released = (slot.released or slot.key in change.release) and slot.key not in change.rejoin
        occupant = slot.occupant
        if slot.key in change.start:
            occupant = "starting"
        elif released and occupant != "nobody":
            occupant = "leaving"
        after.append(replace(slot, occupant=occupant, released=released))
    return after


@given(found=slots, desired=st.integers(0, 9), removed=st.sets(st.integers(0, 7)))
def test_the_pool_gets_what_was_asked_for_as_far_as_there_are_slots(found, desired, removed):
    doomed = {slot.pod for index, slot in enumerate(found) if index in removed}
    change = decide(desired, found, doomed)
    after = carried_out(found, change)
    usable = [slot for slot in after if slot.pod not in doomed]
    kept = [slot for slot in usable if not slot.released]

    assert len(kept) == min(desired, len(usable))
    assert all(slot.occupant != "nobody" for slot in kept)
    assert all(slot.released for slot in after if slot.pod in doomed)
    assert decide(desired, after, doomed) == Change()


@given(found=slots, desired=st.integers(0, 9))
def test_who_goes_is_never_dearer_than_who_stays(found, desired):
    change = decide(desired, found, ())
    going = [slot for slot in found if slot.key in change.release]
    staying = [slot for slot in found if not slot.released and slot.key not in change.release]
    serving = [slot for slot in going if slot.occupant == "serving"]
    for gone in serving:
        for kept in staying:
            assert kept.occupant == "serving"
            assert (gone.requests, -gone.since) <= (kept.requests, -kept.since)
