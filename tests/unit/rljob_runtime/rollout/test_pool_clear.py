"""An engine that is to run nothing any more, in virtual time."""

import asyncio

import pytest

from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.routing.requests import RequestKey
from tests.support.simulated.pool_site import PoolSite, virtual


def submitted(site: PoolSite, slot: EngineSlot, *names: str) -> None:
    for sample, name in enumerate(names):
        site.submit(slot, RequestKey(sample, 0), name, 0, 1000)


def test_clear_aborts_what_is_submitted_and_waits_until_nothing_is_placed() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        site = PoolSite(3)
        (slot,) = site.slots
        await site.place(3)
        submitted(site, slot, "0.0#1", "0.1#2")
        ended: list[float] = []

        async def clear() -> None:
            await site.pool.clear(slot, 60)
            ended.append(loop.time())

        clearing = asyncio.ensure_future(clear())
        for _ in range(3):
            await asyncio.sleep(1)
            assert not ended
            site.release(slot)
        await clearing
        assert sorted(slot.engine.aborted) == ["0.0#1", "0.1#2"]
        assert ended == [3.0] and site.lost == []

    virtual(main())


def test_clear_of_an_idle_engine_ends_at_once() -> None:
    async def main() -> None:
        site = PoolSite(3)
        await site.pool.clear(site.slots[0], 60)
        assert asyncio.get_running_loop().time() == 0 and site.lost == []

    virtual(main())


@pytest.mark.parametrize(
    ("what", "seconds", "why"),
    [
        ("it keeps them", 60.0, "engine engine-0 kept requests for 60 s"),
        ("it dies when it is told", 0.1, "engine engine-0: killed"),
        ("its node is gone", 5.0, "node gone"),
    ],
)
def test_clear_ends_without_the_requests(what: str, seconds: float, why: str) -> None:
    async def main() -> None:
        site = PoolSite(1)
        (slot,) = site.slots
        await site.place(1)
        submitted(site, slot, "0.0#1")
        slot.engine.dead = what == "it dies when it is told"
        if what == "its node is gone":
            asyncio.get_running_loop().call_later(5, site.pool.lost, slot, "node gone")
        await site.pool.clear(slot, 60)
        assert asyncio.get_running_loop().time() == pytest.approx(seconds)
        assert site.lost == [why]

    virtual(main())
