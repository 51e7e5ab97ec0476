"""Requests that wait in lanes: against a look at all of them, and what changes of rank leave behind."""

import random

import pytest

from rljob_runtime.routing.lanes import Lanes
from rljob_runtime.routing.policy import Entry, Lane
from tests.support.simulated.routed import Engines, group_of

LANES: tuple[Lane, ...] = ("any", "heavy", 7)


def test_the_smallest_rank_of_a_lane_that_an_engine_serves_goes_first_whatever_has_changed() -> None:
    rng, lanes = random.Random(0), Lanes()
    requests = [group_of(running=[0], uid=uid).requests[0] for uid in range(30)]
    entries: dict[int, Entry] = {}
    served: dict[int, tuple[Lane, ...]] = {}
    engines = Engines([[], []]).engines
    for _ in range(5000):
        if rng.random() < 0.2:
            engine = rng.choice(engines)
            has_room = rng.random() < 0.7
            served[engine.number] = rng.choice([("any",), ("heavy",), ("any", "heavy")]) if has_room else ()
            lanes.engine(engine, served[engine.number], 1.0 if has_room else None)
        else:
            request = rng.choice(requests)
            entry = None if rng.random() < 0.2 else Entry(rng.choice(LANES), (rng.random(), request.key.uid))
            lanes.put(request, entry)
            entries.pop(request.key.uid, None)
            entries |= {} if entry is None else {request.key.uid: entry}
        free = {lane for some in served.values() for lane in some}
        first = min((each.rank, uid) for uid, each in entries.items() if each.lane in free) if any(
            each.lane in free for each in entries.values()
        ) else None  # fmt: skip
        found = lanes.next()
        assert (found and found[0].key.uid) == (first and first[1])
        assert found is None or entries[found[0].key.uid].lane in served[found[1]]
        assert len(lanes) == lanes.probes == len(entries)


@pytest.mark.parametrize("decisions", [False, True])
def test_ranks_that_change_while_requests_wait_leave_little_behind(decisions: bool) -> None:
    """With decisions, one entry that no longer holds comes to the top in each turn, and is dropped there."""
    lanes = Lanes()
    requests = [group_of(running=[0], uid=uid).requests[0] for uid in range(100)]
    if decisions:
        lanes.engine(Engines([[]]).engines[0], ("any",), 1.0)
    for turn in range(100):
        for request in requests:
            lanes.put(request, Entry("any", (float(-turn), *request.key)))
        lanes.put(requests[0], Entry("any", (1.0, *requests[0].key)))
        if decisions:
            assert lanes.next() == (requests[1], 0)
    assert sum(map(len, lanes._heaps.values())) <= 2 * 100 + 64 + 1


def test_entries_that_were_dropped_at_the_top_are_not_counted_as_left_behind() -> None:
    """Where ranks rise a decision drops all that no longer holds; where they fall nothing comes to the
    top."""
    lanes = Lanes()
    requests = [group_of(running=[0], uid=uid).requests[0] for uid in range(100)]
    lanes.engine(Engines([[]]).engines[0], ("any",), 1.0)
    for rank in [*range(100), *range(0, -10, -1)]:
        for request in requests:
            lanes.put(request, Entry("any", (float(rank), *request.key)))
        assert lanes.next() == (requests[0], 0)
    assert sum(map(len, lanes._heaps.values())) <= 2 * 100 + 64 + 1


def test_nothing_is_left_of_the_lane_of_an_engine_that_is_gone() -> None:
    lanes = Lanes()
    request = group_of(running=[0]).requests[0]
    for number, engine in enumerate(Engines([[]] * 100).engines):
        lanes.engine(engine, (number, "any"), 1.0)
        lanes.put(request, Entry(number, (0.0,)))
        assert lanes.next() == (request, number)
        lanes.engine(engine, (), None)
        assert lanes.next() is None, "whom it waits for is gone"
        lanes.put(request, None)
        assert lanes.next() is None
    assert (list(lanes._engines), lanes._served) == (["any"], {})
    assert len(lanes._heaps) <= 65, "entries that no longer hold are dropped together"
