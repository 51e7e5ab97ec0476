"""Bringing engines to a new weight version: the push and the pull plan.

Guarantees:
- a version that must cross the network does so while the engine generates, before its pause barrier, and
  so does one that an engine can bring into its memory beside the weights that it generates with: all engines
  do that at the same time, and pause when all have it;
- push that lets requests go on (`keep`): an engine that can put what it has brought into its memory in its
  model between two steps does so, which is its barrier then, and does not pause;
- an engine's version changes only inside its barrier, and it takes new requests only after that;
- push: every live engine leaves the barrier with the version that was pushed, or with the one it had when
  that is gone, or is lost; all of them get requests again at the same moment, so that what waits is spread
  over all;
- where some engines could not get a stored version and try again, the others go on;
- pull: an engine loads the newest published version when it has finished what it runs; no response on it
  spans two versions;
- an engine that does not answer within the deadline is lost, and the others go on; one that is to finish
  what it runs may take as long as it generates tokens;
- an engine is taken out, or set aside, only where no group of a collective transport is under way with it;
- an engine that is set aside keeps its version until it is taken back, and joins then with the newest one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Protocol, TypeVar

from msgspec import structs

from rljob_runtime.change_signal import ChangeSignal
from rljob_runtime.engines.protocol import EngineDied, PauseMode, WeightRef
from rljob_runtime.rollout.broadcast import SETTLE_SECONDS, Broadcaster, Broadcasts
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.generated_tokens import generated_tokens
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sources import WeightSources
from rljob_runtime.weights.shm import WeightsGone
from rljob_runtime.weights.transport import FETCHED, STORED

T = TypeVar("T")

_LOOKS = 10
"""How often an engine is looked at in the time in which it must generate."""

log = logging.getLogger(__name__)


class WeightSync(Protocol):
    """A plan by which published versions reach the engines: `Push` or `Pull`."""

    newest: WeightRef | None
    """The newest version; None before the first one."""
    newest_changed: ChangeSignal
    """Notified when `newest` has changed."""

    async def deliver(self, ref: WeightRef, broadcaster: Broadcaster | None = None) -> None:
        """A new version exists. `broadcaster` sends it where the transport is collective."""
        ...

    async def retry(self) -> None:
        """Have those engines get the newest version that could not, where it is stored; the others go on."""
        ...

    async def settled(self) -> None:
        """Wait until no engine is on its way to a version: each that could load the newest one has it. What
        an engine does on that way has a deadline, after which it is lost."""
        ...

    async def remove(self, slot: EngineSlot) -> None:
        """Take an engine that has left out of the pool."""
        ...

    async def set_aside(self, choose: Callable[[], Sequence[EngineSlot]]) -> list[EngineSlot]:
        """Set aside those of the engines that get requests which `choose` names, while none of them is on its
        way to a version. Returns those that are set aside."""
        ...

    async def take_back(self, slot: EngineSlot) -> None:
        """Take back an engine that was set aside, on which nothing is. It joins with the newest version: at
        once where it can get it, and else (`slot.entered` is False) with one that is delivered later."""
        ...


class EngineSync:
    """The steps of one engine's update, each with a deadline."""

    def __init__(self, pool: EnginePool, deadline: float, stall_seconds: float) -> None:
        """`deadline`: seconds that each step may take; a pause that waits for an engine's requests
        (`wait`) may take longer, as long as the engine generates within each `stall_seconds`."""
        self.pool = pool
        self._deadline = deadline
        self._stall_seconds = stall_seconds

    async def prepare(self, slot: EngineSlot, ref: WeightRef) -> None:
        """Have a version brought to the engine's machine, and into its memory where it can; what comes of one
        that is gone, `load` decides."""
        fetched = ref.transport in FETCHED
        if slot.alive and (fetched or (slot.engine.stages and (ref.transport in STORED or ref.staged))):
            event = "weight_fetch" if fetched else "weight_stage"
            with suppress(WeightsGone):
                await self._guarded(slot, event, slot.engine.prepare(ref), self._deadline)

    async def pause(self, slot: EngineSlot, mode: PauseMode) -> None:
        if not slot.alive:
            return
        # Before the pause: an engine that is to finish its requests would never do so while it got new ones.
        self.pool.leave(slot)
        if mode == "wait":
            await self._guarded(slot, "weight_pause", self._drained(slot), None)
        else:
            await self._guarded(slot, "weight_pause", slot.engine.pause(mode), self._deadline)

    async def _drained(self, slot: EngineSlot) -> None:
        """Pause an engine when it has finished what it runs. One that generates nothing for a while is lost,
        and soon after that: meanwhile other engines may have to wait."""
        engine, before, clock = slot.engine, None, asyncio.get_running_loop().time
        moved_at = clock()
        pausing = asyncio.ensure_future(engine.pause("wait"))
        try:
            while not (await asyncio.wait((pausing,), timeout=self._stall_seconds / _LOOKS))[0]:
                now = await generated_tokens(slot, self._deadline)
                if now != before:
                    before, moved_at = now, clock()
                elif clock() - moved_at >= self._stall_seconds:
                    what = f"engine {engine.name} generated nothing for {self._stall_seconds:g} s"
                    field = "spec.training.timeouts.stallSeconds"
                    why = f"{what} while it was to finish its requests ({field})"
                    self.pool.lost(slot, why, silent=True)
                    return
            pausing.result()
        finally:
            pausing.cancel()
            await asyncio.gather(pausing, return_exceptions=True)

    async def load(self, slot: EngineSlot, ref: WeightRef) -> None:
        if not slot.alive:
            return
        try:
            await self._guarded(slot, "weight_load", slot.engine.load(ref), self._deadline)
        except WeightsGone as error:
            log.info("%s stays at version %d: %s", slot.engine.name, slot.version, error)
            return
        if slot.alive:
            self.pool.loaded(slot, ref.version)

    async def swap(self, slot: EngineSlot, ref: WeightRef) -> bool:
        """Have an engine go on with a version that it has brought into its memory; False where it is to be
        paused for it."""
        if not (slot.alive and slot.engine.stages and (ref.transport in STORED or ref.staged)):
            return False
        self.pool.leave(slot)
        event, began = "weight_swap", slot.events.clock()
        with slot.expecting(ref.version):
            if not await self._answered(slot, event, slot.engine.swap(ref), self._deadline):
                return False
            slot.events.add(event, self.pool.step, began, slot.events.clock() - began)
            self.pool.loaded(slot, ref.version)
        return True

    async def resume(self, slot: EngineSlot) -> None:
        """End an engine's pause; it gets requests once it joins the pool."""
        if slot.alive:
            await self._guarded(slot, "weight_resume", slot.engine.resume(), self._deadline)

    async def renew(self, slot: EngineSlot, ref: WeightRef) -> None:
        """Have an engine that runs nothing load a version that is on its machine; it keeps what it has where
        that is gone."""
        if slot.version != ref.version:
            await self.pause(slot, "abort")
            await self.load(slot, ref)
            await self.resume(slot)

    async def _guarded(
        self, slot: EngineSlot, event: str, call: Coroutine[Any, Any, None], deadline: float | None
    ) -> None:
        """Await a call to an engine as `_answered` does, and record it."""
        with slot.events.span(event, self.pool.step):
            await self._answered(slot, event, call, deadline)

    async def _answered(
        self, slot: EngineSlot, event: str, call: Coroutine[Any, Any, T], deadline: float | None
    ) -> T | None:
        """Await a call to an engine; one that fails, or takes longer than `deadline` seconds (None: it has an
        end of its own), costs the engine."""
        try:
            async with asyncio.timeout(deadline):
                return await call
        except TimeoutError:
            what = f"engine {slot.engine.name}: {event} took longer than {self._deadline:g} s"
            self.pool.lost(slot, f"{what} (spec.training.timeouts.weightUpdateSeconds)", silent=True)
        except EngineDied as error:
            self.pool.lost(slot, str(error))
        return None


class Push:
    """Interrupts all engines at once, lets them load, and resumes them."""

    def __init__(self, sync: EngineSync, mode: PauseMode, settle: float = SETTLE_SECONDS) -> None:
        """`settle`: seconds that engines get to finish with a version whose broadcast was broken off."""
        self.newest: WeightRef | None = None
        self.newest_changed = ChangeSignal()
        self._sync = sync
        self._mode = mode
        self._sources = WeightSources()
        self._broadcasts = Broadcasts(sync.pool, self._sources, settle)
        self._one_at_a_time = asyncio.Lock()

    async def deliver(self, ref: WeightRef, broadcaster: Broadcaster | None = None) -> None:
        # Neither has a deadline: who holds the lock is at an update, whose steps have deadlines, and who
        # holds the turn is at a call of the trainer, which has one.
        async with self._one_at_a_time, nullcontext() if broadcaster is None else broadcaster.turn:
            await self._update(ref, broadcaster)

    async def retry(self) -> None:
        async with self._one_at_a_time:
            if (ref := self.newest) is not None and ref.transport in STORED:
                await asyncio.gather(*(self._sync.prepare(slot, ref) for slot in self._behind(ref)))
                # Those too that came meanwhile.
                await self._put_in(ref, self._behind(ref), None)

    def _behind(self, ref: WeightRef) -> list[EngineSlot]:
        return [slot for slot in self._sync.pool.training_slots if slot.version != ref.version]

    async def settled(self) -> None:
        """Nothing to wait for: when `deliver` has returned, no engine is on its way to a version."""

    async def again(
        self, current: Callable[[], Awaitable[WeightRef | None]], broadcaster: Broadcaster
    ) -> None:
        """Send to all engines what the trainer holds, for those that came after the newest version.
        `current` names it while the trainer stands still; None: this is not the time."""
        async with self._one_at_a_time, broadcaster.turn:
            if (ref := await current()) is not None:
                await self._update(ref, broadcaster)

    async def _update(self, ref: WeightRef, broadcaster: Broadcaster | None) -> None:
        slots = self._sync.pool.training_slots
        if broadcaster is not None and slots and all(slot.engine.stages for slot in slots):
            await self._update_staged(ref, broadcaster, [slot for slot in slots if slot.alive])
            return
        await asyncio.gather(*(self._sync.prepare(slot, ref) for slot in slots))
        # Without an await up to `paused`: an engine that comes is among those, or finds this version.
        self.newest = ref
        self.newest_changed.notify()
        await self._put_in(ref, self._sync.pool.training_slots, broadcaster)

    async def _put_in(
        self, ref: WeightRef, all_slots: Sequence[EngineSlot], broadcaster: Broadcaster | None
    ) -> None:
        """Have these engines go on with a version: without a pause where they can, and else after one."""
        swapped: list[EngineSlot] = []
        if broadcaster is None:
            swapped = await self._swap(all_slots, self._refs(ref, all_slots, None))
        paused = [slot for slot in all_slots if slot not in swapped]
        await asyncio.gather(*(self._sync.pause(slot, self._mode) for slot in paused))
        # A collective group waits for all its members: one that was lost before now is left out.
        slots = [slot for slot in paused if slot.alive]
        refs = self._refs(ref, slots, broadcaster)
        loads = [self._sync.load(slot, own) for slot, own in zip(slots, refs, strict=True)]
        if broadcaster is None:
            await asyncio.gather(*loads)
        elif refs:
            loading = {asyncio.ensure_future(load): slot for load, slot in zip(loads, slots, strict=True)}
            await self._broadcasts.send(broadcaster, refs[0], loading)
        await self._resume(slots, swapped)

    async def _update_staged(
        self, ref: WeightRef, broadcaster: Broadcaster, slots: Sequence[EngineSlot]
    ) -> None:
        """Bring a version to engines that take it in while they generate. One that comes meanwhile is in
        another group, later."""
        # Without an await since the engines were looked at: one that came later, with initial weights, would
        # else join with these. Admission goes by the oldest weights, and might never get to the next version.
        self.newest = ref
        self.newest_changed.notify()
        staged = structs.replace(ref, staged=True)
        refs = self._refs(staged, slots, broadcaster)
        if refs:
            arriving = {
                asyncio.ensure_future(self._sync.prepare(slot, own)): slot
                for slot, own in zip(slots, refs, strict=True)
            }
            await self._broadcasts.send(broadcaster, refs[0], arriving)
        swapped = await self._swap(slots, refs)
        rest = {slot: own for slot, own in zip(slots, refs, strict=True) if slot not in swapped}
        await asyncio.gather(*(self._sync.pause(slot, self._mode) for slot in rest))
        await asyncio.gather(*(self._sync.load(slot, own) for slot, own in rest.items()))
        await self._resume(list(rest), swapped)

    def _refs(
        self, ref: WeightRef, slots: Sequence[EngineSlot], broadcaster: Broadcaster | None
    ) -> list[WeightRef]:
        """For each of these engines where it gets a version from."""
        start = 0 if broadcaster is None else broadcaster.starts
        return self._sources.refs(ref, slots, [slot.devices for slot in slots], start)

    async def _swap(self, slots: Sequence[EngineSlot], refs: Sequence[WeightRef]) -> list[EngineSlot]:
        """Have those engines go on with a version that need no pause for it; which they are."""
        if self._mode != "keep":
            return []
        swaps = [self._sync.swap(slot, own) for slot, own in zip(slots, refs, strict=True)]
        done = await asyncio.gather(*swaps)
        return [slot for slot, swapped in zip(slots, done, strict=True) if swapped]

    async def _resume(self, paused: Sequence[EngineSlot], swapped: Sequence[EngineSlot]) -> None:
        """All get requests again, those too that were not paused."""
        await asyncio.gather(*(self._sync.resume(slot) for slot in paused))
        # Without an await between them: all that waits would be placed on the first one.
        for slot in (*paused, *swapped):
            self._sync.pool.join(slot)

    async def remove(self, slot: EngineSlot) -> None:
        if self.newest is None or self.newest.transport in STORED:
            self._sync.pool.remove(slot)
            return
        # Not while a broadcast is under way, which counts on the engine; its steps have deadlines.
        async with self._one_at_a_time:
            self._sync.pool.remove(slot)

    async def set_aside(self, choose: Callable[[], Sequence[EngineSlot]]) -> list[EngineSlot]:
        async with self._one_at_a_time:
            chosen = list(choose())
            for slot in chosen:
                self._sync.pool.set_aside(slot)
            return chosen

    async def take_back(self, slot: EngineSlot) -> None:
        # While the others generate and get versions: it is none of those yet.
        await self._fetch_newest(slot)
        async with self._one_at_a_time:
            ref = self.newest
            if ref is not None and ref.transport in STORED:
                # One that came meanwhile; the next one waits for it.
                await self._fetch_newest(slot)
                await self._sync.renew(slot, ref)
                # It stays aside: what it holds is older than what groups under way were begun with.
                if slot.version != ref.version:
                    return
            self._sync.pool.take_back(slot)
            if ref is None or slot.version == ref.version:
                self._sync.pool.join(slot)

    async def _fetch_newest(self, slot: EngineSlot) -> None:
        if self.newest is not None and slot.version != self.newest.version:
            await self._sync.prepare(slot, self.newest)


class Pull:
    """Lets every engine load the newest version when it has finished what it runs."""

    def __init__(self, sync: EngineSync, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """`spawn` starts a task whose failure ends the job."""
        self.newest: WeightRef | None = None
        self.newest_changed = ChangeSignal()
        self._sync = sync
        self._spawn = spawn
        self._updating: set[EngineSlot] = set()
        self._updated = ChangeSignal()

    async def deliver(self, ref: WeightRef, broadcaster: Broadcaster | None = None) -> None:
        if broadcaster is not None:
            raise ValueError("pull needs a transport with a store, not a collective one")
        self.newest = ref
        self.newest_changed.notify()
        for slot in self._sync.pool.training_slots:
            # One that is under way looks at `newest` again before it is done.
            if slot not in self._updating:
                self._updating.add(slot)
                self._spawn(self._catch_up(slot))

    async def retry(self) -> None:
        if self.newest is not None:
            # Those that have it go on.
            await self.deliver(self.newest)

    async def _catch_up(self, slot: EngineSlot) -> None:
        try:
            # Also back to an older one, with a trainer that went back to its checkpoint.
            while slot.alive and self.newest is not None and slot.version != self.newest.version:
                wanted = self.newest
                await self._sync.prepare(slot, wanted)
                await self._sync.pause(slot, "wait")
                # Perhaps newer than what was fetched: the pause may have taken long.
                await self._sync.load(slot, self.newest)
                await self._sync.resume(slot)
                if slot.entered or slot.version == self.newest.version:
                    self._sync.pool.join(slot)
                if slot.version != wanted.version and self.newest is wanted:
                    return  # It is gone: the next one that is published brings the engine up to date.
        finally:
            self._updating.discard(slot)
            self._updated.notify()

    async def settled(self) -> None:
        # No deadline: each engine leaves `_updating` by the deadlines of `EngineSync`, done or lost.
        while self._updating:
            await self._updated.wait()

    async def remove(self, slot: EngineSlot) -> None:
        self._sync.pool.remove(slot)

    async def set_aside(self, choose: Callable[[], Sequence[EngineSlot]]) -> list[EngineSlot]:
        chosen = [slot for slot in choose() if slot not in self._updating]
        for slot in chosen:
            self._sync.pool.set_aside(slot)
        return chosen

    async def take_back(self, slot: EngineSlot) -> None:
        self._sync.pool.take_back(slot)
        if self.newest is None or slot.version == self.newest.version:
            self._sync.pool.join(slot)
        elif slot not in self._updating:
            self._updating.add(slot)
            await self._catch_up(slot)
