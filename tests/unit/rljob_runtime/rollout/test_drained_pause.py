"""A pause that waits for what an engine runs, while other engines may wait for it."""

import asyncio
import itertools
import math
from collections.abc import Iterable

import pytest
from msgspec import structs

from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.engines.protocol import LoadSnapshot, PauseMode
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sync import EngineSync
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.record.event_log import EventLog

STALL_SECONDS = 600.0
WORK_SECONDS = 5 * STALL_SECONDS


class DrainingEngine(FakeEngine):
    """Finishes what it runs after `WORK_SECONDS`; says to have generated one of `counts` after the other."""

    def __init__(self, counts: Iterable[int]) -> None:
        super().__init__("engine", lambda request: 1)
        self._counts = iter(counts)

    async def pause(self, mode: PauseMode) -> None:
        await asyncio.sleep(WORK_SECONDS)

    async def load_snapshot(self) -> LoadSnapshot:
        return structs.replace(await super().load_snapshot(), generated_tokens=next(self._counts))


@pytest.mark.parametrize(
    ("counts", "lost", "seconds"),
    [
        (itertools.repeat(7), True, 1.1 * STALL_SECONDS),
        (itertools.chain(range(15), itertools.repeat(15)), True, 2.6 * STALL_SECONDS),
        # A token in nine looks of ten to the stall.
        ((count // 9 for count in itertools.count()), False, WORK_SECONDS),
    ],
    ids=["silent", "falls silent", "slow"],
)
def test_one_that_generates_nothing_is_lost_soon_after_it_counts_as_silent(
    counts: Iterable[int], lost: bool, seconds: float
) -> None:
    async def main() -> tuple[EngineSlot, float]:
        clock = asyncio.get_running_loop().time
        pool = EnginePool(clock, lambda slot, why: None)
        slot = EngineSlot(DrainingEngine(counts), "fast", 8, EventLog(None, 0, "engine", "fast"))
        await slot.engine.start(0)
        pool.add(slot)
        pool.join(slot)
        slot.promised = 1000
        began = clock()
        await EngineSync(pool, 60, STALL_SECONDS).pause(slot, "wait")
        return slot, clock() - began

    slot, took = run_virtual(main())
    assert (slot.alive, took) == (not lost, pytest.approx(seconds))
    # It has told of no token by itself.
    assert slot.silent_seconds == (math.inf if lost else 0)
