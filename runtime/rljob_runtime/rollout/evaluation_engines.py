"""The engines that an evaluation runs on: those that train as well, or some that are set aside for it.

Guarantees: engines that are set aside run what the evaluation asks for and nothing else, and keep their
weights, from before any other version is delivered until the evaluation is over or given up; then they are
taken back. Where all of them are lost, others take their place. Who reads the log learns of each evaluation
that does not get the engines that it is to have.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from rljob_runtime.evaluation.engines import (
    PoolShare,
    ServingEngine,
    engines_in_their_place,
    engines_to_set_aside,
)
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sync import WeightSync
from rljob_runtime.weights.transport import STORED

_CLEAR_SECONDS = 120.0
"""For an engine that is set aside to give back what it runs of training; afterwards it counts as dead."""
_AGAIN_SECONDS = 30.0
"""Time after which an engine that is taken back asks again for a version that could not be had."""


class EvaluationEngines:
    """See the module's guarantees."""

    def __init__(
        self,
        pool: EnginePool,
        plan: WeightSync,
        wanted: PoolShare | None,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        say: Callable[[str], None],
        send_again: Callable[[], Awaitable[None]],
    ) -> None:
        """`wanted`: what is set aside; None: nothing. `spawn` starts a task whose failure ends the job; `say`
        tells a person; `send_again` has a collective transport send what the trainer holds."""
        self._pool = pool
        self._plan = plan
        self._wanted = wanted
        self._spawn = spawn
        self._say = say
        self._send_again = send_again
        self._changed = asyncio.Event()
        """Set when engines have come or gone."""
        if wanted is not None:
            pool.listen(self._changed.set)

    @asynccontextmanager
    async def of(self, version: int, alone: bool) -> AsyncIterator[int]:
        """The engines of an evaluation of `version`, which all engines hold: how many are set aside, until
        the context is left; 0: it runs on all, as where nothing is trained beside it (`alone`)."""
        wanted, over = None if alone else self._wanted, asyncio.Event()
        if wanted is None:
            yield 0
            return
        chosen = await self._set_aside(wanted, version, over, engines_to_set_aside)
        if len(chosen) < wanted.count:
            self._tell_of_fewer(wanted, len(chosen), version)
        if not chosen:
            yield 0
            return
        self._spawn(self._keep(chosen, wanted, version, over))
        try:
            yield len(chosen)
        finally:
            over.set()
            self._changed.set()

    async def _keep(
        self, chosen: list[EngineSlot], wanted: PoolShare, version: int, over: asyncio.Event
    ) -> None:
        """Have these engines, which are set aside, serve the evaluation until it is over, and others in their
        place whenever all are lost; then have them get requests of training again."""
        mine = chosen
        async with asyncio.TaskGroup() as tasks:
            serving = self._serve(chosen, tasks)
            # No deadline: it waits for losses, and then for engines, which the fleet starts again.
            while not over.is_set():
                self._changed.clear()
                mine = [slot for slot in mine if slot.alive and not slot.leaving]
                if not mine:
                    mine = await self._set_aside(wanted, version, over, engines_in_their_place)
                    if mine:
                        self._tell_of_others(wanted, mine[0].version, version)
                    serving = self._serve(mine, tasks)
                # Looked at again: while others were set aside, it may have ended.
                if not over.is_set():
                    await self._changed.wait()
            for slot in mine:
                tasks.create_task(self._take_back(slot, serving[slot]))

    def _serve(
        self, slots: Sequence[EngineSlot], tasks: asyncio.TaskGroup
    ) -> "Mapping[EngineSlot, asyncio.Task[None]]":
        return {slot: tasks.create_task(self._pool.serve_aside(slot, _CLEAR_SECONDS)) for slot in slots}

    async def _set_aside(
        self,
        wanted: PoolShare,
        version: int,
        over: asyncio.Event,
        decide: Callable[[Sequence[ServingEngine], int, int], Sequence[int]],
    ) -> list[EngineSlot]:
        def choose() -> list[EngineSlot]:
            if over.is_set():
                return []
            serving = {
                slot.number: slot
                for slot in self._pool.training_slots
                if slot.pool == wanted.pool and slot.joined
            }
            engines = [ServingEngine(slot.number, slot.version, slot.running) for slot in serving.values()]
            return [serving[number] for number in decide(engines, wanted.count, version)]

        return await self._plan.set_aside(choose)

    def _tell_of_fewer(self, wanted: PoolShare, count: int, version: int) -> None:
        instead = f"on {count} of them" if count else "on all engines, beside training"
        self._say(
            f"the evaluation of version {version} runs {instead}: its {wanted.count} of the {wanted.pool} "
            "pool are not there, or training would be left without"
        )

    def _tell_of_others(self, wanted: PoolShare, held: int, version: int) -> None:
        which = "" if held == version else f", which hold version {held}: what they say is unpinned"
        self._say(
            f"the engines of the evaluation of version {version} are gone; others of the {wanted.pool} pool "
            f"go on{which}"
        )

    async def _take_back(self, slot: EngineSlot, serving: "asyncio.Task[None]") -> None:
        """Have an engine get requests of training again, with the newest weights. `serving`: what had it
        serve the evaluation."""
        pool, plan = self._pool, self._plan
        # Where the evaluation was given up at its very beginning; it has a deadline.
        await asyncio.wait((serving,))
        # It gets nothing of the next evaluation, which is of other weights and may begin while it fetches.
        # What it ran of this one is over, or was given up with it.
        pool.leave(slot)
        while slot.alive and not slot.leaving and not slot.entered:
            newest = plan.newest
            await plan.take_back(slot)
            if newest is None:
                return
            if slot.entered or plan.newest is not newest:
                continue
            if newest.transport not in STORED:
                # The next version is sent to it with the others; with nobody else there would be none.
                if pool.only_newcomers:
                    await self._send_again()
                return
            # It is gone: another one comes, or it was the network.
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_SECONDS):
                    await plan.newest_changed.wait()
