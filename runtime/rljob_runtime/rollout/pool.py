"""The live engines and the places on them.

Guarantees: a place is given to the waiting request with the smallest priority, only on an engine that has
joined, and never above the engine's limit; each place is given back exactly once; a request that waits is
given a place as soon as one is free.
"""

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from rljob_runtime.engines.protocol import Engine, EngineDied
from rljob_runtime.routing.place import EngineLoad, choose_engine
from rljob_runtime.trace.record.event_log import EventLog

Priority = tuple[int, int]


@dataclass(eq=False)
class EngineSlot:
    """An engine and what is known of it."""

    engine: Engine
    pool: str
    limit: int
    """Most requests that it runs."""
    events: EventLog
    version: int = 0
    devices: int = 1
    """Accelerators that it spans."""
    joined: bool = False
    """It gets requests."""
    entered: bool = False
    """It has joined at some time, so that requests may run on it."""
    leaving: bool = False
    """It is to go: it gets no requests any more, whatever else happens to it."""
    alive: bool = True
    places: int = 0
    """Places given out."""
    requests: set[str] = field(default_factory=set)
    """Ids of the requests that are submitted."""
    idle_since: float | None = None
    """When it had nothing to do from; None while it has."""
    idle_seconds: float = 0.0
    """Idle time that has ended."""

    def idle(self, now: float) -> float:
        """All idle time so far, in seconds."""
        return self.idle_seconds + (0.0 if self.idle_since is None else now - self.idle_since)

    @property
    def load(self) -> EngineLoad:
        return EngineLoad(self.places, self.limit, self.joined and self.alive)


class EnginePool:
    """See the module's guarantees."""

    def __init__(self, clock: Callable[[], float], on_lost: Callable[[EngineSlot, str], None]) -> None:
        """`on_lost` is told, once, of each engine that died, and why."""
        self.slots: list[EngineSlot] = []
        self.step = 0
        """The step that is being trained; labels events."""
        self._clock = clock
        self._on_lost = on_lost
        self._waiters: list[tuple[Priority, int, asyncio.Future[EngineSlot]]] = []
        self._ticket = 0
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a place was freed or an engine joined or left."""
        self._listeners.append(listener)

    def add(self, slot: EngineSlot) -> None:
        """A live engine that has not joined yet."""
        self.slots.append(slot)

    def join(self, slot: EngineSlot) -> None:
        """Give this engine requests: it is ready and holds the weights of `slot.version`. One that is
        leaving gets none."""
        if slot.leaving:
            return
        slot.joined = slot.entered = True
        if slot.idle_since is None and slot.places == 0:
            slot.idle_since = self._clock()
        self._changed()

    def leave(self, slot: EngineSlot) -> None:
        """Give this engine no further requests; those it runs go on."""
        slot.joined = False

    async def clear(self, slot: EngineSlot) -> None:
        """Make this engine leave for good; returns when its requests have moved on, with the tokens that
        they have, or when it died."""
        slot.leaving, slot.joined = True, False
        freed = asyncio.Event()
        self._listeners.append(freed.set)
        try:
            await asyncio.gather(*(slot.engine.abort(request_id) for request_id in list(slot.requests)))
            while slot.places:
                freed.clear()
                await freed.wait()
        except EngineDied as error:
            self.lost(slot, str(error))
        finally:
            self._listeners.remove(freed.set)

    def remove(self, slot: EngineSlot) -> None:
        """Forget an engine that has left."""
        if slot.alive:
            slot.alive = slot.joined = False
            self.slots.remove(slot)
            self._changed()

    def lost(self, slot: EngineSlot, why: str) -> None:
        """This engine died."""
        if slot.alive:
            slot.alive = slot.joined = False
            self.slots.remove(slot)
            self._on_lost(slot, why)
            self._changed()

    def lose_newer(self, version: int) -> None:
        """The job went back to `version`: what engines hold above it are weights of steps that do not count,
        and nothing may be generated with them."""
        for slot in [slot for slot in self.slots if slot.version > version]:
            what = f"could not go back from version {slot.version} to {version}"
            self.lost(slot, f"engine {slot.engine.name} {what}")

    def oldest_version(self) -> int | None:
        """Oldest version with which tokens may be generated: that of the live engines, without those that
        have yet to join, for they join with the newest. None when none gets requests."""
        if not any(slot.joined for slot in self.slots):
            return None
        return min(slot.version for slot in self.slots if slot.entered)

    @property
    def only_newcomers(self) -> bool:
        """Whether the engines that are there all wait to join for the first time."""
        return bool(self.slots) and not any(slot.entered for slot in self.slots)

    def has_room(self) -> bool:
        """Whether a new request would be placed at once."""
        return not self._waiters and choose_engine([slot.load for slot in self.slots]) is not None

    async def acquire(self, priority: Priority) -> EngineSlot:
        """A place on an engine; waits for one."""
        future: asyncio.Future[EngineSlot] = asyncio.get_running_loop().create_future()
        self._ticket += 1
        heapq.heappush(self._waiters, (priority, self._ticket, future))
        self._place()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(future.result())
            raise

    def release(self, slot: EngineSlot) -> None:
        """Give a place back."""
        slot.places -= 1
        if slot.places == 0:
            slot.idle_since = self._clock()
        self._changed()

    async def abort_all(self) -> None:
        """Abort every submitted request."""
        for slot in list(self.slots):
            try:
                await asyncio.gather(*(slot.engine.abort(request_id) for request_id in list(slot.requests)))
            except EngineDied as error:
                self.lost(slot, str(error))

    def _changed(self) -> None:
        self._place()
        for listener in self._listeners:
            listener()

    def _place(self) -> None:
        while self._waiters:
            if self._waiters[0][2].done():
                heapq.heappop(self._waiters)
                continue
            index = choose_engine([slot.load for slot in self.slots])
            if index is None:
                return
            slot = self.slots[index]
            _, _, future = heapq.heappop(self._waiters)
            slot.places += 1
            if slot.idle_since is not None:
                now = self._clock()
                slot.events.add("idle", self.step, slot.idle_since, now - slot.idle_since)
                slot.idle_seconds += now - slot.idle_since
                slot.idle_since = None
            future.set_result(slot)
