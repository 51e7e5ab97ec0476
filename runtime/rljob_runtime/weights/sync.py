"""Bringing engines to a new weight version: the push and the pull plan.

Guarantees:
- an engine's version changes only inside its pause barrier, and it takes new requests only after that;
- push: every live engine leaves the barrier with the version that was pushed, or is lost;
- pull: an engine loads the newest published version when it has finished what it runs; no response on it
  spans two versions;
- an engine that does not answer within the deadline is lost, and the others go on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from rljob_runtime.engine_pool import EnginePool, EngineSlot
from rljob_runtime.engines.protocol import EngineDied, PauseMode, WeightRef
from rljob_runtime.weights.meeting import Meeting

Transmit = Callable[[WeightRef], Awaitable[None]]
"""Sends a version to the engines that load it, given the reference of any one of them."""


class WeightSyncPlan(Protocol):
    """What the training loop does with a new version."""

    newest: WeightRef | None

    async def publish(self, ref: WeightRef, transmit: Transmit | None = None) -> None:
        """A new version exists. `transmit` sends it where the transport is collective."""
        ...


class EngineSync:
    """The steps of one engine's update, each with a deadline."""

    def __init__(self, pool: EnginePool, deadline: float, drain_deadline: float) -> None:
        """`deadline` and `drain_deadline` (for `wait`) in seconds."""
        self.pool = pool
        self._deadline = deadline
        self._drain_deadline = drain_deadline

    async def pause(self, slot: EngineSlot, mode: PauseMode) -> None:
        self.pool.leave(slot)
        deadline = self._drain_deadline if mode == "wait" else self._deadline
        await self._guarded(slot, "weight_pause", slot.engine.pause(mode), deadline)

    async def load(self, slot: EngineSlot, ref: WeightRef) -> None:
        if slot.alive:
            await self._guarded(slot, "weight_load", slot.engine.load(ref), self._deadline)
        if slot.alive:
            slot.version = ref.version

    async def resume(self, slot: EngineSlot) -> None:
        if slot.alive:
            await self._guarded(slot, "weight_resume", slot.engine.resume(), self._deadline)
        if slot.alive:
            self.pool.join(slot)

    async def _guarded(
        self, slot: EngineSlot, event: str, call: Coroutine[Any, Any, None], deadline: float
    ) -> None:
        try:
            with slot.events.span(event, self.pool.step):
                async with asyncio.timeout(deadline):
                    await call
        except TimeoutError:
            self.pool.lost(slot, f"engine {slot.engine.name}: {event} took longer than {deadline:g} s")
        except EngineDied as error:
            self.pool.lost(slot, str(error))


class Push:
    """Interrupt all engines at once, load, resume."""

    def __init__(self, sync: EngineSync, mode: PauseMode) -> None:
        self.newest: WeightRef | None = None
        self._sync = sync
        self._mode = mode
        self._meeting = Meeting()
        self._one_at_a_time = asyncio.Lock()

    async def publish(self, ref: WeightRef, transmit: Transmit | None = None) -> None:
        async with self._one_at_a_time:
            self.newest = ref
            paused = list(self._sync.pool.slots)
            await asyncio.gather(*(self._sync.pause(slot, self._mode) for slot in paused))
            slots = [slot for slot in paused if slot.alive]
            refs = self._meeting.refs(ref, slots, [slot.devices for slot in slots])
            sending = [transmit(refs[0])] if transmit is not None and refs else []
            loading = (self._sync.load(slot, own) for slot, own in zip(slots, refs, strict=True))
            await asyncio.gather(*loading, *sending)
            await asyncio.gather(*(self._sync.resume(slot) for slot in slots))


class Pull:
    """Let every engine fetch the newest version when it is ready."""

    def __init__(self, sync: EngineSync, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """`spawn` starts a task whose failure ends the job."""
        self.newest: WeightRef | None = None
        self._sync = sync
        self._spawn = spawn
        self._updating: set[EngineSlot] = set()

    async def publish(self, ref: WeightRef, transmit: Transmit | None = None) -> None:
        if transmit is not None:
            raise ValueError("pull needs a transport with a store, not a collective one")
        self.newest = ref
        for slot in list(self._sync.pool.slots):
            if slot not in self._updating:
                self._updating.add(slot)
                self._spawn(self._catch_up(slot))

    async def _catch_up(self, slot: EngineSlot) -> None:
        try:
            while slot.alive and self.newest is not None and slot.version < self.newest.version:
                await self._sync.pause(slot, "wait")
                await self._sync.load(slot, self.newest)
                await self._sync.resume(slot)
        finally:
            self._updating.discard(slot)
