"""What the parts of a job tell of their progress."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np

from rljob_runtime.driver.activity import JobActivity
from rljob_runtime.driver.stall import Activity
from rljob_runtime.engines.fake import FakeEngine, FakeTiming
from rljob_runtime.engines.protocol import LoadSnapshot, Request
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.routing.requests import RequestKey
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.record.event_log import EventLog


class Hung(FakeEngine):
    """Does not answer."""

    async def load_snapshot(self) -> LoadSnapshot:
        await asyncio.get_running_loop().create_future()
        raise AssertionError


def ask(*engines: FakeEngine, paused: bool = False, starting: bool = False) -> tuple[Activity, float]:
    """What is told of these engines, and how many seconds the asking took."""

    async def main() -> tuple[Activity, float]:
        pool = EnginePool(lambda: 0.0, lambda slot, why: None)
        for engine in engines:
            await engine.start(0)
            slot = EngineSlot(engine, "fast", 8, EventLog(None, 0, engine.name, "fast"))
            pool.add(slot)
            pool.join(slot)
            if paused:
                pool.leave(slot)
        fleet: Any = SimpleNamespace(starting=starting)
        rollouter: Any = SimpleNamespace(counts=GroupCounts(accepted=3))
        clock = asyncio.get_running_loop().time
        began = clock()
        told = await JobActivity(pool, fleet, rollouter, lambda: 5)()
        return told, clock() - began

    return run_virtual(main())


def engine(kind: type[FakeEngine], name: str) -> FakeEngine:
    return kind(name, lambda request: 1, 8, FakeTiming())


def test_each_engine_tells_its_tokens_and_one_that_does_not_answer_is_left_out_soon() -> None:
    told, seconds = ask(engine(FakeEngine, "fast-1"), engine(Hung, "fast-2"), engine(FakeEngine, "fast-0"))
    assert told == Activity((("fast-0", 0), ("fast-1", 0)), rewards=5, groups=3, busy=False)
    assert seconds == 20


def test_an_engine_that_died_is_left_out() -> None:
    dead = engine(FakeEngine, "fast-0")
    told, _ = ask(dead)
    assert told.generated_tokens
    dead.die("killed")

    async def main() -> Activity:
        pool = EnginePool(lambda: 0.0, lambda slot, why: None)
        pool.add(EngineSlot(dead, "fast", 8, EventLog(None, 0, "fast-0", "fast")))
        rollouter: Any = SimpleNamespace(counts=GroupCounts())
        return await JobActivity(pool, SimpleNamespace(starting=False), rollouter, lambda: 0)()  # type: ignore[arg-type]

    assert run_virtual(main()).generated_tokens == ()


def test_a_start_and_a_weight_update_are_waited_for() -> None:
    assert ask(engine(FakeEngine, "fast-0"), starting=True)[0].busy
    assert ask(engine(FakeEngine, "fast-0"), paused=True)[0].busy
    assert not ask()[0].busy


def test_an_engine_is_not_believed_more_tokens_than_its_requests_may_have() -> None:
    """It takes two requests of 50 tokens at most, and tells of ever more tokens without an end."""

    class Boaster(FakeEngine):
        told = 0

        async def load_snapshot(self) -> LoadSnapshot:
            self.told += 60
            return LoadSnapshot(0, 2, False, self.told)

    async def main() -> list[int]:
        pool = EnginePool(lambda: 0.0, lambda slot, why: None)
        slot = EngineSlot(
            Boaster("fast-0", lambda request: 1), "fast", 8, EventLog(None, 0, "fast-0", "fast")
        )
        pool.add(slot)
        pool.join(slot)
        for sample in range(2):
            pool.submitted(
                slot, RequestKey(0, sample), Request(f"0.{sample}#1", np.zeros(4, np.int32), 50, 0)
            )
        fleet: Any = SimpleNamespace(starting=False)
        rollouter: Any = SimpleNamespace(counts=GroupCounts())
        activity = JobActivity(pool, fleet, rollouter, lambda: 0)
        return [(await activity()).generated_tokens[0][1] for _ in range(4)]

    assert run_virtual(main()) == [60, 100, 100, 100]
