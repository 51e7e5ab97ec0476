"""A version that crosses the network does so while the engine goes on generating."""

import asyncio

import pytest

from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.engines.protocol import PauseMode, WeightRef
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sync import EngineSync, Pull, Push
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.weights.shm import WeightsGone

DEADLINE = 100.0
FETCH_SECONDS = 7.0


class FetchingEngine(FakeEngine):
    """Notes what it is asked for, and when; fetching takes `seconds`, or fails with `error`."""

    def __init__(self, seconds: float = FETCH_SECONDS, error: Exception | None = None) -> None:
        super().__init__("engine", lambda request: 1)
        self.asked: list[tuple[str, float]] = []
        self._seconds = seconds
        self._error = error

    async def prepare(self, ref: WeightRef) -> None:
        self._note("prepare")
        await asyncio.sleep(self._seconds)
        if self._error is not None:
            raise self._error

    async def pause(self, mode: PauseMode) -> None:
        self._note("pause")
        await super().pause(mode)

    async def load(self, ref: WeightRef) -> None:
        self._note("load")
        if self._error is not None:
            raise self._error
        await super().load(ref)

    def mend(self) -> None:
        """It fails no more."""
        self._error = None

    def _note(self, what: str) -> None:
        self.asked.append((what, asyncio.get_running_loop().time()))


def publish(engine: FetchingEngine, plan: str, transport: str = "tcp") -> tuple[EngineSlot, list[str]]:
    """Publish version 1 to the engine by a plan; its slot afterwards, and why engines were lost."""
    lost: list[str] = []

    async def main() -> EngineSlot:
        pool = EnginePool(asyncio.get_running_loop().time, lambda slot, why: lost.append(why))
        slot = EngineSlot(engine, "fast", 8, EventLog(None, 0, "engine", "fast"))
        await engine.start(0)
        pool.add(slot)
        pool.join(slot)
        sync = EngineSync(pool, DEADLINE, DEADLINE)
        async with asyncio.TaskGroup() as tasks:
            pushing = Push(sync, "keep") if plan == "push" else Pull(sync, tasks.create_task)
            await pushing.deliver(WeightRef(1, transport, "tcp://host:1/v1"))  # type: ignore[arg-type]
        return slot

    return run_virtual(main()), lost


@pytest.mark.parametrize("plan", ["push", "pull"])
def test_an_engine_fetches_before_it_is_paused(plan: str) -> None:
    engine = FetchingEngine()
    slot, lost = publish(engine, plan)
    assert [what for what, _ in engine.asked] == ["prepare", "pause", "load"]
    assert engine.asked[1][1] - engine.asked[0][1] == FETCH_SECONDS
    assert (slot.version, slot.joined, lost) == (1, True, [])


@pytest.mark.parametrize("plan", ["push", "pull"])
def test_what_is_on_the_machine_is_not_fetched(plan: str) -> None:
    engine = FetchingEngine()
    publish(engine, plan, "shm")
    assert [what for what, _ in engine.asked] == ["pause", "load"]


@pytest.mark.parametrize("plan", ["push", "pull"])
def test_a_version_that_is_gone_leaves_the_engine_at_its_own(plan: str) -> None:
    slot, lost = publish(FetchingEngine(error=WeightsGone("removed")), plan)
    assert (slot.version, slot.joined, lost) == (0, True, [])


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("plan", ["push", "pull"])
def test_one_that_could_not_get_a_version_tries_again_and_the_others_go_on(plan: str, transport: str) -> None:
    has_it, lacks_it = FetchingEngine(), FetchingEngine(error=WeightsGone("no answer for 60 s"))

    async def main() -> list[tuple[int, bool]]:
        pool = EnginePool(asyncio.get_running_loop().time, lambda slot, why: None)
        for engine in (has_it, lacks_it):
            slot = EngineSlot(engine, "fast", 8, EventLog(None, 0, "engine", "fast"))
            await engine.start(0)
            pool.add(slot)
            pool.join(slot)
        async with asyncio.TaskGroup() as tasks:
            sync = EngineSync(pool, DEADLINE, DEADLINE)
            pushing = Push(sync, "keep") if plan == "push" else Pull(sync, tasks.create_task)
            await pushing.retry()
            assert not has_it.asked, "there is no version yet"
            await pushing.deliver(WeightRef(1, transport, "tcp://host:1/v1"))  # type: ignore[arg-type]
            await pushing.settled()
            assert [slot.version for slot in pool.slots] == [1, 0]
            lacks_it.mend()
            await pushing.retry()
            await pushing.settled()
        return [(slot.version, slot.joined) for slot in pool.slots]

    assert run_virtual(main()) == [(1, True), (1, True)]
    asked = ["prepare"] * (transport == "tcp") + ["pause", "load"]
    assert [[what for what, _ in engine.asked] for engine in (has_it, lacks_it)] == [asked, 2 * asked]


@pytest.mark.parametrize("plan", ["push", "pull"])
def test_an_engine_that_does_not_finish_fetching_is_lost(plan: str) -> None:
    engine = FetchingEngine(seconds=2 * DEADLINE)
    _, lost = publish(engine, plan)
    field = "spec.training.timeouts.weightUpdateSeconds"
    assert lost == [f"engine engine: weight_fetch took longer than {DEADLINE:g} s ({field})"]
    assert engine.asked == [("prepare", engine.asked[0][1])]
