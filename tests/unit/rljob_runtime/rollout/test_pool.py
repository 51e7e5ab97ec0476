"""Where requests wait, are placed and are released, and what is known of the engines, in virtual time."""

import asyncio
from typing import Any

import pytest

from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool_use import PoolUse
from rljob_runtime.trace.record.event_log import EventLog
from tests.support.simulated.pool_site import PoolSite, RecordingEngine, virtual


@pytest.mark.parametrize(
    ("limits", "requests", "order", "running"),
    [
        ((2, 2), 4, [0, 1, 0, 1], [2, 2]),
        ((1, 3), 4, [0, 1, 1, 1], [1, 3]),
        ((2, 8), 6, [0, 1, 1, 1, 1, 0], [2, 4]),
    ],
    ids=["in turn", "never above the limit", "by share: 2 of 8 are less than 1 of 2"],
)
def test_where_requests_are_placed(
    limits: tuple[int, ...], requests: int, order: list[int], running: list[int]
) -> None:
    async def main() -> None:
        site = PoolSite(*limits)
        assert await site.place(requests) == order
        assert site.running == running

    virtual(main())


def test_of_requests_that_wait_the_oldest_group_goes_first() -> None:
    async def main() -> None:
        site = PoolSite(1)
        (slot,) = site.slots
        await site.place(1)
        waiting = {uid: site.wait(uid) for uid in (7, 4, 3)}
        await asyncio.sleep(1)
        order: list[int] = []
        for uid, task in waiting.items():
            task.add_done_callback(lambda _, uid=uid: order.append(uid))  # type: ignore[misc]
        assert not site.has_room()
        for _ in waiting:
            site.release(slot)
            await asyncio.sleep(1)
        assert order == [3, 4, 7]
        assert slot.running == 1

    virtual(main())


def test_nobody_overtakes_one_that_waits_when_an_engine_joins() -> None:
    async def main() -> None:
        site = PoolSite(2, joined=False)
        waiting = [site.wait(uid) for uid in range(3)]
        await asyncio.sleep(1)
        site.pool.join(site.slots[0])
        assert not site.has_room(), "its two places are for those that wait"
        await asyncio.sleep(1)
        assert [task.done() for task in waiting] == [True, True, False]
        waiting[2].cancel()

    virtual(main())


def test_a_group_that_is_given_up_while_it_waits_is_not_placed() -> None:
    async def main() -> None:
        site = PoolSite(1)
        await site.place(1)
        first, second = site.wait(1), site.wait(2)
        await asyncio.sleep(1)
        first.cancel()
        site.pool.cancel(1)
        await asyncio.sleep(1)
        site.release(site.slots[0])
        await asyncio.sleep(1)
        assert second.done() and site.running == [1]

    virtual(main())


def test_a_group_that_is_given_up_in_the_moment_it_is_placed_is_released() -> None:
    async def main() -> None:
        site = PoolSite(1)
        await site.place(1)
        waiting = site.wait(1)
        await asyncio.sleep(1)
        site.release(site.slots[0])  # It is placed now, and learns of it in the next turn of the loop.
        assert site.running == [1]
        waiting.cancel()
        site.pool.cancel(1)
        await asyncio.sleep(1)
        assert waiting.cancelled() and site.running == [0]
        assert site.has_room()

    virtual(main())


def test_groups_that_were_given_up_do_not_count_as_waiting() -> None:
    async def main() -> None:
        site = PoolSite(1, joined=False)
        waiting = [site.wait(uid) for uid in range(3)]
        await asyncio.sleep(1)
        for uid, task in enumerate(waiting):
            task.cancel()
            site.pool.cancel(uid)
            site.pool.cancel(uid)
        await asyncio.sleep(1)
        site.pool.join(site.slots[0])
        assert site.has_room() and site.running == [0]

    virtual(main())


STATES = {
    "joined": (lambda _pool, _slot: None, True),
    "it has yet to join": (None, False),
    "paused": (lambda pool, slot: pool.leave(slot), False),
    "paused and joined again": (lambda pool, slot: (pool.leave(slot), pool.join(slot)), True),
    "leaving": (lambda pool, slot: asyncio.ensure_future(pool.clear(slot, 9)), False),
    "lost": (lambda pool, slot: pool.lost(slot, "killed"), False),
    "lost, and joined all the same": (lambda pool, slot: (pool.lost(slot, ""), pool.join(slot)), False),
    "removed": (lambda pool, slot: pool.remove(slot), False),
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_who_gets_requests(state: str) -> None:
    async def main() -> None:
        change, gets = STATES[state]
        site = PoolSite(1, joined=change is not None)
        if change is not None:
            change(site.pool, site.slots[0])
            await asyncio.sleep(0)
        assert site.has_room() is gets
        assert (site.pool.oldest_version() is not None) is gets

    virtual(main())


def test_a_leaving_engine_does_not_join() -> None:
    """Its weights were being loaded when it was told to leave."""

    async def main() -> None:
        site = PoolSite(2)
        await site.place(1)
        clearing = asyncio.ensure_future(site.pool.clear(site.slots[0], 9))
        await asyncio.sleep(1)
        site.pool.join(site.slots[0])
        assert not site.slots[0].joined and not site.has_room()
        site.release(site.slots[0])
        await clearing
        assert not site.has_room()

    virtual(main())


def test_what_a_lost_engine_ran_is_released_and_brings_it_not_back() -> None:
    async def main() -> None:
        site = PoolSite(2, 2)
        await site.place(3)
        site.pool.lost(site.slots[0], "killed")
        site.pool.lost(site.slots[0], "told twice")
        assert site.lost == ["killed"]
        assert site.pool.slots == site.slots[1:]
        site.release(site.slots[0])
        site.release(site.slots[0])
        assert site.running == [0, 1]
        assert await site.place(1) == [1]
        assert not site.has_room()

    virtual(main())


def test_an_engine_that_was_never_added_may_be_removed() -> None:
    """It died while it loaded its first weights."""

    async def main() -> None:
        site = PoolSite(1)
        engine: Any = RecordingEngine("engine-1")
        newcomer = EngineSlot(engine, "fast", 1, EventLog(None, 0, "engine-1", "fast"))
        site.pool.remove(newcomer)
        assert site.pool.slots == site.slots and site.lost == []

    virtual(main())


# Versions and idle time


def test_the_oldest_version_is_that_of_engines_that_have_entered() -> None:
    async def main() -> None:
        site = PoolSite(1, 1, joined=False)
        pool, (first, second) = site.pool, site.slots
        seen = [pool.oldest_version()]
        for act in (
            lambda: pool.loaded(first, 3),
            lambda: pool.join(first),
            lambda: pool.loaded(second, 2),
            lambda: pool.join(second),
            lambda: pool.leave(second),
            lambda: pool.loaded(second, 4),
            lambda: pool.join(second),
            lambda: pool.leave(first),
            lambda: pool.loaded(first, 5),
            lambda: pool.leave(second),
            lambda: pool.join(first),
            lambda: pool.lost(second, "killed"),
            lambda: pool.loaded(second, 1),
            lambda: pool.lost(first, "killed"),
        ):
            act()
            seen.append(pool.oldest_version())
        assert seen == [None, None, 3, 3, 2, 2, 3, 3, 3, 4, None, 4, 5, 5, None]

    virtual(main())


def test_only_newcomers_are_there_until_one_has_entered_and_when_all_that_had_are_gone() -> None:
    async def main() -> None:
        site = PoolSite(1, 1, joined=False)
        pool, (first, second) = site.pool, site.slots
        assert pool.only_newcomers
        pool.join(first)
        assert not pool.only_newcomers
        pool.leave(first)
        assert not pool.only_newcomers, "it has entered, and is only paused"
        pool.lost(first, "killed")
        assert pool.only_newcomers
        pool.lost(second, "killed")
        assert not pool.only_newcomers, "nobody is there"

    virtual(main())


def test_engines_above_the_version_that_the_job_went_back_to_are_lost() -> None:
    async def main() -> None:
        site = PoolSite(1, 1, 1)
        for slot, version in zip(site.slots, (2, 3, 5), strict=True):
            site.pool.loaded(slot, version)
        site.pool.lose_newer(3)
        assert site.pool.slots == site.slots[:2]
        assert site.lost == ["engine engine-2 could not go back from version 5 to 3"]

    virtual(main())


def test_idle_time_is_what_passes_without_a_request() -> None:
    async def main() -> None:
        site = PoolSite(2, joined=False)
        (slot,), pool, clock = site.slots, site.pool, asyncio.get_running_loop().time
        idle: list[float] = []
        noted: list[tuple[str, float, float]] = []
        slot.events.add = lambda event, step, start, seconds: noted.append((event, start, seconds))  # type: ignore
        await asyncio.sleep(1)
        idle.append(slot.idle(clock()))
        pool.join(slot)
        await asyncio.sleep(2)
        idle.append(slot.idle(clock()))
        await site.place(2)
        await asyncio.sleep(4)
        idle.append(slot.idle(clock()))
        site.release(slot)
        await asyncio.sleep(8)
        idle.append(slot.idle(clock()))
        site.release(slot)
        await asyncio.sleep(16)
        idle.append(slot.idle(clock()))
        assert idle == [0.0, 2.0, 2.0, 2.0, 18.0]
        pool.leave(slot)
        await asyncio.sleep(1)
        pool.join(slot)
        assert slot.idle(clock()) == 19.0, "a pause of an idle engine is idle time too"
        await site.place(1)
        assert noted == [("idle", 1.0, 2.0), ("idle", 15.0, 17.0)]
        pool.leave(slot)
        pool.join(slot)
        await asyncio.sleep(1)
        assert slot.idle(clock()) == 19.0, "it came back from its pause with a request"

    virtual(main())


def test_listeners_hear_of_what_may_make_room() -> None:
    async def main() -> None:
        site = PoolSite(2, 2)
        heard = site.changes
        assert heard == 2, "the joins"
        await site.place(1)
        assert site.changes == heard
        for act in (
            lambda: site.release(site.slots[0]),
            lambda: site.pool.lost(site.slots[0], "killed"),
            lambda: site.pool.remove(site.slots[1]),
        ):
            act()
            heard += 1
            assert site.changes == heard

    virtual(main())


def test_idle_time_is_by_the_pools_clock_and_recorded_by_that_of_events() -> None:
    """The machine's clock, which events have, may be set back: here by an hour while the engine is idle."""

    async def main() -> None:
        site = PoolSite(2, joined=False)
        (slot,), loop = site.slots, asyncio.get_running_loop()
        noted: list[tuple[str, float, float]] = []
        slot.events.add = lambda event, step, start, seconds: noted.append((event, start, seconds))  # type: ignore
        site.pool.join(slot)
        await asyncio.sleep(2)
        slot.events.clock = lambda: loop.time() - 3600.0
        await site.place(1)
        assert noted == [("idle", -3600.0, 2.0)]
        assert site.pool.use() == {"fast": PoolUse(seconds=2.0, idle=2.0, running=1)}

    virtual(main())


def test_the_use_of_a_pool_counts_engines_that_are_gone() -> None:
    """Of two engines one is busy for its 10 s, then it is lost; the other one never is."""

    async def main() -> None:
        site = PoolSite(1, 0)
        gone, _ = site.slots
        await site.place(1)
        await asyncio.sleep(10)
        site.pool.lost(gone, "killed")
        await asyncio.sleep(20)
        use = site.pool.use()
        assert use == {"fast": PoolUse(seconds=10.0 + 30.0, idle=30.0, running=0)}

    virtual(main())


def test_an_engine_counts_from_when_it_joins() -> None:
    async def main() -> None:
        site = PoolSite(2, joined=False)
        await asyncio.sleep(100)
        site.pool.join(site.slots[0])
        await asyncio.sleep(5)
        await site.place(1)
        await asyncio.sleep(5)
        use = site.pool.use()
        assert use == {"fast": PoolUse(seconds=10.0, idle=5.0, running=1)}

    virtual(main())
