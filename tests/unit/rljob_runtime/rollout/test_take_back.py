"""An engine that was set aside comes back while versions are delivered, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.engines.protocol import PauseMode, WeightRef
from rljob_runtime.evaluation.engines import PoolShare
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.evaluation_engines import EvaluationEngines
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sync import EngineSync, Pull, Push
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.weights.shm import WeightsGone

FETCH_SECONDS = 7.0
PAUSE_SECONDS = 2.0


class OneAtATime(FakeEngine):
    """Fetches and loads, each of which takes time, and does not bear both at once. It notes which version it
    fetched while it was paused."""

    def __init__(self, name: str) -> None:
        super().__init__(name, lambda request: 1)
        self.fetched = 0
        self.fetched_late: list[int] = []
        self.gone: set[int] = set()
        """Versions that it cannot have."""
        self._busy = False

    async def prepare(self, ref: WeightRef) -> None:
        await self._fetch(ref)

    async def pause(self, mode: PauseMode) -> None:
        await asyncio.sleep(PAUSE_SECONDS)
        await super().pause(mode)

    async def load(self, ref: WeightRef) -> None:
        if self.fetched != ref.version:
            self.fetched_late.append(ref.version)
        await self._fetch(ref)
        await super().load(ref)

    async def _fetch(self, ref: WeightRef) -> None:
        assert not self._busy, "two versions are fetched at a time"
        self._busy = True
        try:
            if self.fetched != ref.version:
                await asyncio.sleep(FETCH_SECONDS)
            if ref.version in self.gone:
                raise WeightsGone(f"version {ref.version} is gone")
            self.fetched = ref.version
        finally:
            self._busy = False


class Site:
    """Three engines of one pool, with version 0."""

    def __init__(self, plan: str, tasks: asyncio.TaskGroup) -> None:
        self.lost: list[str] = []
        self.pool = EnginePool(asyncio.get_running_loop().time, lambda slot, why: self.lost.append(why))
        sync = EngineSync(self.pool, 100, 100)
        self.sync = Push(sync, "keep") if plan == "push" else Pull(sync, tasks.create_task)
        self.engines = [OneAtATime(f"engine-{number}") for number in range(3)]
        self.slots = [
            EngineSlot(each, "fast", 8, EventLog(None, 0, each.name, "fast")) for each in self.engines
        ]
        self.evaluated_on = EvaluationEngines(
            self.pool, self.sync, PoolShare("fast", 1), tasks.create_task, lambda _: None, self._never
        )

    async def _never(self) -> None:
        raise AssertionError("versions are stored")

    async def begin(self) -> None:
        for engine, slot in zip(self.engines, self.slots, strict=True):
            await engine.start(0)
            self.pool.add(slot)
            self.pool.join(slot)

    async def deliver(self, version: int) -> None:
        await self.sync.deliver(WeightRef(version, "tcp", f"tcp://host:1/v{version}"))
        await self.sync.settled()


def at_a_site(plan: str, script: "Callable[[Site], Awaitable[None]]") -> Site:
    """The site after a script, which is given it."""

    async def main() -> Site:
        async with asyncio.TaskGroup() as tasks:
            site = Site(plan, tasks)
            await site.begin()
            await script(site)
        return site

    return run_virtual(main())


@pytest.mark.parametrize("plan", ["push", "pull"])
# From before the fetch of the version that it comes back to, to after it.
@pytest.mark.parametrize("after", [0.5, 3.0, 7.5, 8.5, 9.5, 15.5])
def test_it_fetches_one_version_at_a_time_and_none_while_others_wait(plan: str, after: float) -> None:
    async def script(site: Site) -> None:
        async with site.evaluated_on.of(0, alone=False) as aside:
            assert aside == 1
            await site.deliver(1)
        await asyncio.sleep(after)
        await site.deliver(2)

    site = at_a_site(plan, script)
    assert site.lost == []
    assert [(slot.version, slot.joined) for slot in site.slots] == [(2, True)] * 3
    # With pull it delays nobody but itself.
    assert plan == "pull" or [engine.fetched_late for engine in site.engines] == [[]] * 3


@pytest.mark.parametrize("plan", ["push", "pull"])
def test_it_gets_nothing_of_training_with_the_weights_that_it_kept(plan: str) -> None:
    async def script(site: Site) -> None:
        async with site.evaluated_on.of(0, alone=False):
            (aside,) = site.pool.aside_slots
            site.engines[site.slots.index(aside)].gone = {1, 2}
            await site.deliver(1)
        await asyncio.sleep(FETCH_SECONDS + 1)
        await site.deliver(2)
        assert not aside.joined and site.pool.oldest_version() == 2
        await site.deliver(3)
        # What is gone it may have asked for some times.
        await asyncio.sleep(6 * FETCH_SECONDS)
        assert aside.joined and aside.version == 3

    assert at_a_site(plan, script).lost == []


@pytest.mark.parametrize("plan", ["push", "pull"])
def test_it_gets_nothing_of_the_next_evaluation_while_it_fetches(plan: str) -> None:
    async def script(site: Site) -> None:
        async with site.evaluated_on.of(0, alone=False):
            (before,) = site.pool.aside_slots
            await site.deliver(1)
        await asyncio.sleep(1)
        async with site.evaluated_on.of(1, alone=False):
            await asyncio.sleep(1)
            (now,) = [slot for slot in site.pool.aside_slots if slot.joined]
            assert now is not before and now.version == 1

    assert at_a_site(plan, script).lost == []
