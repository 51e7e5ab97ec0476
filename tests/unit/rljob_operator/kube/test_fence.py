"""When writing is allowed, and when a lease may be taken."""

import asyncio

import pytest

from rljob_operator.kube.fence import Fence, LeaseLost
from rljob_operator.kube.lease_rules import LeaseRecord, LeaseTiming, Sighting
from rljob_runtime.simulate.virtual_loop import run_virtual


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def fence(clock):
    """Open until 10."""
    return Fence(10.0, clock)


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        # (when, what) ...; seconds that a write may take at the end, or why it is refused
        ([(0, "look")], 10.0),
        ([(9.5, "look")], 0.5),
        ([(10, "look")], "not renewed in time"),
        ([(5, "extend to 15"), (12, "look")], 3.0),
        ([(5, "extend to 8"), (9, "look")], 1.0),
        ([(11, "extend to 20"), (12, "look")], "not renewed in time"),
        ([(1, "close"), (2, "extend to 20"), (3, "look")], "it was taken"),
        ([(11, "close"), (11, "look")], "not renewed in time"),
    ],
)
def test_writes_begin_only_while_the_fence_is_open(fence, clock, steps, left):
    for clock.now, what in steps:
        if what == "close":
            fence.close("it was taken")
        elif what.startswith("extend"):
            fence.extend(float(what.split()[-1]))
    if isinstance(left, str):
        with pytest.raises(LeaseLost, match=left), fence.write():
            pytest.fail("the write began")
    else:
        with fence.write() as seconds:
            assert seconds == left


def test_drained_waits_for_the_last_write(clock):
    async def scenario():
        loop = asyncio.get_running_loop()
        fence = Fence(100.0, loop.time)

        async def write(seconds):
            with fence.write():
                await asyncio.sleep(seconds)

        writes = [asyncio.create_task(write(seconds)) for seconds in (1.0, 3.0)]
        await asyncio.sleep(0.5)
        fence.close("it was given back")
        await fence.drained()
        assert all(write.done() for write in writes)
        return loop.time()

    assert run_virtual(scenario()) == 3.0


def record(version="1", holder="other", renewed="t0", duration=15.0):
    return LeaseRecord(version, holder, duration, renewed)


@pytest.mark.parametrize(
    ("sightings", "free_at"),
    [
        # (when, record) ...; when `me` may take the lease
        ([(5.0, record())], 20.0),
        ([(5.0, record(holder=""))], 5.0),
        ([(5.0, record(holder="me"))], 5.0),
        ([(5.0, record(duration=60.0))], 65.0),
        ([(5.0, record()), (12.0, record())], 20.0),
        ([(5.0, record()), (12.0, record("2", renewed="t1"))], 27.0),
        ([(5.0, record()), (12.0, record("2", holder="third"))], 27.0),
        # An annotation, such as a user's, does not prolong anybody's lease.
        ([(5.0, record()), (12.0, record("2"))], 20.0),
    ],
)
def test_a_lease_is_free_when_it_was_not_renewed_for_its_duration(sightings, free_at):
    (when, first), *later = sightings
    seen = Sighting(first, when)
    for when, again in later:
        seen = seen.updated(again, when)
    assert seen.free_at("me") == free_at
    assert seen.record == sightings[-1][1]


@pytest.mark.parametrize(
    "timing", [(15, 15.0, 2.0), (15, 10.0, 10.0), (15, 10.0, 0.0), (10, 12.0, 2.0)], ids=str
)
def test_timing_without_a_margin_is_refused(timing):
    with pytest.raises(ValueError, match="each below the next"):
        LeaseTiming(*timing)
