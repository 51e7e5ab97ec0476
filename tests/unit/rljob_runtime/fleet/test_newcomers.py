"""Engines that come while training goes on, with weights that are broadcast: they hold up nobody."""

import asyncio

import pytest

from rljob_runtime.engines.fake import FakeEngine, FakeTiming
from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sync import EngineSync, Pull
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.weights.shm import WeightsGone
from tests.support.simulated.losable_parts import Losses
from tests.support.simulated.losing_job import LosingSession, run_losing


async def steps_done(session: LosingSession, steps: int) -> None:
    trainer = session.losable
    await trainer.stepped.until(lambda: trainer.steps >= steps, 1e6)


def trained_once(session: LosingSession) -> bool:
    trained = [group.uid for groups in session.losable.trained for group in groups]
    return sorted(trained) == list(range(session.settings.total_groups))


@pytest.mark.parametrize(("steps", "at_once"), [(8, True), (9, False), (10, False), (11, False)])
def test_one_that_comes_within_a_version_holds_up_nobody(steps: int, at_once: bool) -> None:
    """It waits for the next version, and the others go on meanwhile."""
    seen: list[tuple[int, bool]] = []

    async def script(session: LosingSession) -> None:
        await steps_done(session, steps)
        slot = await session.come()
        await session.send_to_newcomers()
        seen.append((slot.version, slot.joined))
        await steps_done(session, 14)
        seen.append((slot.version, slot.joined))

    session = run_losing(
        Losses(steps=20, max_staleness=1, steps_per_version=4, collective=True, script=script)
    )
    assert trained_once(session) and session.lost == []
    # What the trainer holds after step 8 is version 2.
    assert seen == [(2, True) if at_once else (0, False), (3, True)]


@pytest.mark.parametrize("max_staleness", [0.0, 0.5, 1.0])
def test_one_that_comes_while_the_first_version_is_broadcast_holds_up_nobody(max_staleness: float) -> None:
    """It has no part in that broadcast. With its initial weights it would hold admission at version 0, and
    the next version needs groups of later ones."""

    async def script(session: LosingSession) -> None:
        for slot in session.pool.slots:
            slot.engine.stages = True  # type: ignore[misc]
        await steps_done(session, 1)
        # The step is trained, and the broadcast takes until long after this.
        await asyncio.sleep(1.0)
        assert all(slot.version == 0 and slot.joined for slot in session.pool.slots), "it is under way"
        slot = await session.come_as_newcomer()
        slot.engine.stages = True  # type: ignore[misc]

    session = run_losing(
        Losses(
            steps=6,
            max_staleness=max_staleness,
            collective=True,
            seconds={"step": 0.5, "transmit": 4.0},
            script=script,
        )
    )
    assert trained_once(session) and session.lost == []
    assert [slot.version for slot in session.pool.slots] == [5, 5, 5]


def test_those_that_wait_are_served_when_nobody_else_is_left() -> None:
    async def script(session: LosingSession) -> None:
        await steps_done(session, 9)
        served = list(session.pool.slots)
        slot = await session.come()
        await session.send_to_newcomers()
        assert not slot.joined
        for each in served:
            session.pool.lost(each, "its node is gone")

    session = run_losing(
        Losses(steps=20, max_staleness=1, steps_per_version=4, collective=True, script=script)
    )
    assert trained_once(session) and len(session.lost) == 2


def pool_of(*versions: int) -> tuple[EnginePool, list[str]]:
    lost: list[str] = []
    pool = EnginePool(lambda: 0.0, lambda slot, why: lost.append(why))
    for index, version in enumerate(versions):
        engine = FakeEngine(f"engine-{index}", lambda request: 1, 1, FakeTiming())
        slot = EngineSlot(engine, "fast", 1, EventLog(None, 0, engine.name, "fast"), version)
        pool.add(slot)
    return pool, lost


def test_the_oldest_version_is_that_of_engines_that_may_have_requests() -> None:
    async def main() -> None:
        pool, _ = pool_of(0, 3, 4)
        assert pool.oldest_version() is None and pool.only_newcomers
        for slot in pool.slots[1:]:
            pool.join(slot)
        assert pool.oldest_version() == 3 and not pool.only_newcomers
        pool.leave(pool.slots[1])
        assert pool.oldest_version() == 3, "a paused one has requests still"
        pool.lost(pool.slots[1], "killed")
        assert pool.oldest_version() == 4

    run_virtual(main())


def test_engines_that_cannot_go_back_are_lost() -> None:
    async def main() -> None:
        pool, lost = pool_of(2, 3, 5)
        pool.lose_newer(3)
        assert [slot.version for slot in pool.slots] == [2, 3]
        assert lost == ["engine engine-2 could not go back from version 5 to 3"]

    run_virtual(main())


@pytest.mark.parametrize("gone", [False, True])
def test_pull_has_settled_when_each_engine_is_at_the_version_or_cannot_be(gone: bool) -> None:
    async def main() -> None:
        pool, _ = pool_of(5, 6)
        async with asyncio.TaskGroup() as tasks:
            pull = Pull(EngineSync(pool, 60, 60), tasks.create_task)
            await pull.settled()
            for slot in pool.slots:
                await slot.engine.start(slot.version)
                slot.engine.load = load  # type: ignore[method-assign]
                pool.join(slot)
            await pull.deliver(WeightRef(3, "shm", "v3"))
            await pull.settled()
            assert [slot.version for slot in pool.slots] == ([5, 6] if gone else [3, 3])

    async def load(ref: WeightRef) -> None:
        await asyncio.sleep(1.0)
        if gone:
            raise WeightsGone("removed")

    run_virtual(main())
