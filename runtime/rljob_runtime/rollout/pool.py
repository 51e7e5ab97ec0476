"""The live engines, and the requests that wait for one.

Guarantees:
- of the requests that wait the one with the smallest priority is placed first, once an engine has room;
- a request is placed only on an engine that has joined, and never above the engine's limit;
- what is placed counts on its engine until it is released, once, even where the task that waited for it is
  cancelled in the moment in which it is placed;
- what is done for each request (`has_room`, `oldest_version`, `acquire`, `release`) takes the same time for
  any number of engines, but for the placement policy, which takes O(log engines).
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rljob_runtime.engines.protocol import Engine, EngineDied
from rljob_runtime.routing.place import EngineLoad, LeastLoaded, Placement
from rljob_runtime.trace.record.event_log import EventLog

Priority = tuple[int, int]
"""Uid of the group and index of the response in it; the smallest goes first."""


@dataclass(eq=False)
class EngineSlot:
    """An engine and what is known of it. `EnginePool` alone changes it, once it was added."""

    engine: Engine
    pool: str
    """ "fast" or "heavy"."""
    limit: int
    """Most requests that it runs at a time."""
    events: EventLog
    version: int = 0
    """Version of its weights."""
    devices: int = 1
    """Accelerators that it uses."""
    number: int = -1
    """Its place in the order in which engines were added; what placement calls it."""
    joined: bool = False
    """Whether it gets requests now."""
    entered: bool = False
    """Whether it has joined at some time, so that requests may run on it."""
    leaving: bool = False
    """Whether it is to go: it gets no requests any more, whatever else happens to it."""
    alive: bool = True
    """False once it was lost or removed."""
    running: int = 0
    """Requests placed on it that have not ended, submitted or about to be."""
    requests: set[str] = field(default_factory=set)
    """Ids of the requests that are submitted."""
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nothing is placed on it, and once it is lost. Only `EnginePool.clear` waits for it."""
    idle_since: float | None = None
    """Since when it has had nothing to do, in seconds of the pool's clock; None while it has, and before it
    joins."""
    idle_seconds: float = 0.0
    """Idle time that has ended."""

    def idle(self, now: float) -> float:
        """All idle time so far, in seconds."""
        return self.idle_seconds + (0.0 if self.idle_since is None else now - self.idle_since)


class EnginePool:
    """See the module's guarantees."""

    def __init__(
        self,
        clock: Callable[[], float],
        on_lost: Callable[[EngineSlot, str], None],
        placement: Placement | None = None,
    ) -> None:
        """`on_lost` is told, once, of each engine that died, and why. `placement`: least loaded where it is
        not given."""
        self.slots: list[EngineSlot] = []
        """The live engines, in the order in which they were added."""
        self.step = 0
        """The step that is being trained; labels events."""
        self._clock = clock
        self._on_lost = on_lost
        self._placement: Placement = LeastLoaded() if placement is None else placement
        self._by_number: dict[int, EngineSlot] = {}
        self._added = 0
        self._joined = 0
        """How many have joined."""
        self._versions: Counter[int] = Counter()
        """How many of the live engines that have entered hold each version."""
        self._waiters: list[tuple[Priority, int, asyncio.Future[EngineSlot]]] = []
        """Heap of the requests that wait, by priority, then arrival. The future of one that was cancelled is
        done; it is dropped when it comes to the top."""
        self._arrivals = 0
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a request was released or an engine joined or is gone."""
        self._listeners.append(listener)

    # Engines

    def add(self, slot: EngineSlot) -> None:
        """Add a live engine; it gets requests once it joins."""
        slot.number = self._added
        self._added += 1
        slot.drained.set()
        self.slots.append(slot)
        self._by_number[slot.number] = slot

    def join(self, slot: EngineSlot) -> None:
        """Give this engine requests: it is ready and holds the weights of `slot.version`. One that is leaving
        or gone gets none."""
        if slot.leaving or slot.joined or not slot.alive:
            return
        if not slot.entered:
            slot.entered = True
            self._versions[slot.version] += 1
        slot.joined = True
        self._joined += 1
        if slot.idle_since is None and slot.running == 0:
            slot.idle_since = self._clock()
        self._load_changed(slot)
        self._changed()

    def leave(self, slot: EngineSlot) -> None:
        """Give this engine no further requests until it joins again; those it runs go on."""
        if slot.joined:
            slot.joined = False
            self._joined -= 1
            self._load_changed(slot)

    def loaded(self, slot: EngineSlot, version: int) -> None:
        """This engine holds the weights of `version` now."""
        if slot.entered and slot.alive:
            self._forget_version(slot)
            self._versions[version] += 1
        slot.version = version

    async def clear(self, slot: EngineSlot, seconds: float) -> None:
        """Make this engine leave for good. Returns when its requests have moved on, with the tokens that they
        have, or when it is gone; one that keeps requests for longer than `seconds` is lost."""
        slot.leaving = True
        self.leave(slot)
        # From here on nothing is submitted to it, so that these are all. A request that is placed on it and
        # not submitted yet is released by the rollouter, which looks at `leaving`.
        submitted = list(slot.requests)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(slot.engine.abort(request_id) for request_id in submitted))
                await slot.drained.wait()
        except EngineDied as error:
            self.lost(slot, str(error))
        except TimeoutError:
            self.lost(slot, f"engine {slot.engine.name} kept requests for {seconds:g} s")

    def remove(self, slot: EngineSlot) -> None:
        """Forget an engine that has left, or that was never added."""
        if self._has(slot):
            self._take_out(slot)
            self._changed()

    def lost(self, slot: EngineSlot, why: str) -> None:
        """This engine died: it is taken out, and `on_lost` is told. A second time nothing happens."""
        if self._has(slot):
            self._take_out(slot)
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
        # Engines hold few different versions, however many engines there are.
        return min(self._versions) if self._joined else None

    @property
    def only_newcomers(self) -> bool:
        """Whether the engines that are there all wait to join for the first time."""
        return bool(self.slots) and not self._versions

    # Requests

    def has_room(self) -> bool:
        """Whether a new request would be placed at once."""
        return not self._waiting() and self._placement.choose() is not None

    async def acquire(self, priority: Priority) -> EngineSlot:
        """Place a request; waits for an engine with room. Whoever gets the engine releases it.

        A release or an engine that joins ends the wait. It has no deadline, for a full house may be busy as
        long as it likes: engines end their requests or die, and the fleet replaces them or ends the job."""
        if not self._waiting() and (number := self._placement.choose()) is not None:
            return self._occupy(number)
        future: asyncio.Future[EngineSlot] = asyncio.get_running_loop().create_future()
        self._arrivals += 1
        heapq.heappush(self._waiters, (priority, self._arrivals, future))
        try:
            return await future
        except asyncio.CancelledError:
            # It may have been placed in the same turn of the loop in which it was cancelled.
            if future.done() and not future.cancelled():
                self.release(future.result())
            raise

    def release(self, slot: EngineSlot) -> None:
        """A request that was placed on this engine has ended there."""
        slot.running -= 1
        if slot.running == 0:
            slot.idle_since = self._clock()
            slot.drained.set()
        self._load_changed(slot)
        self._changed()

    # Accounts

    def _has(self, slot: EngineSlot) -> bool:
        return slot.number in self._by_number

    def _take_out(self, slot: EngineSlot) -> None:
        self.leave(slot)
        slot.alive = False
        slot.drained.set()
        self.slots.remove(slot)
        del self._by_number[slot.number]
        if slot.entered:
            self._forget_version(slot)

    def _forget_version(self, slot: EngineSlot) -> None:
        self._versions[slot.version] -= 1
        if self._versions[slot.version] == 0:
            del self._versions[slot.version]

    def _load_changed(self, slot: EngineSlot) -> None:
        # Also of one that is gone: what it ran is released later, and must not bring it back.
        load = EngineLoad(slot.running, slot.limit) if slot.joined else None
        self._placement.changed(slot.number, load)

    def _changed(self) -> None:
        while self._waiting() and (number := self._placement.choose()) is not None:
            _, _, future = heapq.heappop(self._waiters)
            future.set_result(self._occupy(number))
        for listener in self._listeners:
            listener()

    def _waiting(self) -> bool:
        """Whether a request waits; afterwards the one to be placed next is at the top of the heap."""
        while self._waiters and self._waiters[0][2].done():
            heapq.heappop(self._waiters)
        return bool(self._waiters)

    def _occupy(self, number: int) -> EngineSlot:
        slot = self._by_number[number]
        slot.running += 1
        slot.drained.clear()
        self._load_changed(slot)
        if slot.idle_since is not None:
            now = self._clock()
            slot.events.add("idle", self.step, slot.idle_since, now - slot.idle_since)
            slot.idle_seconds += now - slot.idle_since
            slot.idle_since = None
        return slot
