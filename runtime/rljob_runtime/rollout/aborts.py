"""Has requests leave their engine before they are complete; an engine that cannot let go of them is lost."""

import asyncio
from collections.abc import Callable

from rljob_runtime.engines.protocol import EngineDied
from rljob_runtime.rollout.engine_slot import EngineSlot


class Aborts:
    """What was told to leave comes back to whoever submitted it, with the tokens that it has."""

    def __init__(self, lost: Callable[[EngineSlot, str], None]) -> None:
        """`lost` is told of an engine that died, and why."""
        self._lost = lost
        self._under_way: set[asyncio.Task[None]] = set()

    def begin(self, slot: EngineSlot, request_id: str) -> None:
        """Have one request leave its engine."""
        task = asyncio.get_running_loop().create_task(self._abort(slot, request_id))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _abort(self, slot: EngineSlot, request_id: str) -> None:
        try:
            await slot.engine.abort(request_id)
        except EngineDied as error:
            self._lost(slot, str(error))

    async def all_of(self, slot: EngineSlot, seconds: float) -> None:
        """Have all that was submitted to an engine, which gets no more requests, leave it. Returns when
        nothing is on it, or when it is gone; one that keeps requests for longer than `seconds` is lost."""
        # From here on nothing is submitted to it, so that these are all. A request that is placed on it and
        # not submitted yet is interrupted by the rollouter, which asks `EnginePool.may_submit`.
        submitted = list(slot.requests)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(slot.engine.abort(request_id) for request_id in submitted))
                await slot.drained.wait()
        except EngineDied as error:
            self._lost(slot, str(error))
        except TimeoutError:
            self._lost(slot, f"engine {slot.engine.name} kept requests for {seconds:g} s")
