"""Whatever the pods and the desired state are, scaling is right, and enough once."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.fleet.scaling import Change, Place, decide

places = st.lists(
    st.builds(
        Place,
        key=st.uuids().map(str),
        pod=st.uuids().map(str),
        occupant=st.sampled_from(["nobody", "starting", "serving", "leaving"]),
        requests=st.integers(0, 5),
        since=st.floats(0, 100),
        released=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda place: place.key,
)


def carried_out(found: list[Place], change: Change) -> list[Place]:
    """The places once everything of `change` has begun."""
    after = []
    for place in found:
        released = (place.released or place.key in change.release) and place.key not in change.rejoin
        occupant = place.occupant
        if place.key in change.start:
            occupant = "starting"
        elif released and occupant != "nobody":
            occupant = "leaving"
        after.append(replace(place, occupant=occupant, released=released))
    return after


@given(found=places, desired=st.integers(0, 9), removed=st.sets(st.integers(0, 7)))
def test_the_pool_gets_what_was_asked_for_as_far_as_there_are_places(found, desired, removed):
    doomed = {place.pod for index, place in enumerate(found) if index in removed}
    change = decide(desired, found, doomed)
    after = carried_out(found, change)
    usable = [place for place in after if place.pod not in doomed]
    kept = [place for place in usable if not place.released]

    assert len(kept) == min(desired, len(usable))
    assert all(place.occupant != "nobody" for place in kept)
    assert all(place.released for place in after if place.pod in doomed)
    assert decide(desired, after, doomed) == Change()


@given(found=places, desired=st.integers(0, 9))
def test_who_goes_is_never_dearer_than_who_stays(found, desired):
    change = decide(desired, found, ())
    going = [place for place in found if place.key in change.release]
    staying = [place for place in found if not place.released and place.key not in change.release]
    serving = [place for place in going if place.occupant == "serving"]
    for gone in serving:
        for kept in staying:
            assert kept.occupant == "serving"
            assert (gone.requests, -gone.since) <= (kept.requests, -kept.since)
