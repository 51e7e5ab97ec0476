"""The rollout workers of a job: started, watched, replaced.

Guarantees: a worker joins the pool only with the weights of the newest published version; a worker that dies
is replaced and its replacement joins the same way; one that keeps dying ends the job (`GivenUp`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from rljob_runtime.engine_pool import EnginePool, EngineSlot
from rljob_runtime.engines.protocol import Engine, EngineDied, WeightRef
from rljob_runtime.restarts import RestartBudget
from rljob_runtime.trace.events import EventLog
from rljob_runtime.weights.shm import WeightsGone

_SETTLED_SECONDS = 60.0
"""A worker that lived this long after it joined did its work: its next death is not one in a row."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seat:
    """A worker's place in the job; its replacement takes the same one."""

    name: str
    pool: str
    limit: int
    """Most requests that its engine runs."""
    events: EventLog
    devices: int = 1
    """Accelerators of its engine."""


class Fleet:
    """See the module's guarantees."""

    def __init__(
        self,
        seats: list[Seat],
        make: Callable[[Seat], Awaitable[Engine]],
        pool: EnginePool,
        newest: Callable[[], WeightRef | None],
        push_again: Callable[[], Awaitable[None]],
        may_join: asyncio.Event,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        say: Callable[[str], None],
        start_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """`make` starts a worker and its engine with the job's initial weights; `newest` is the newest
        published version, None while there is none but those; `push_again` sends it to all engines; nobody
        joins before `may_join`; `spawn` starts a task whose failure ends the job; `say` tells a person."""
        self._seats = {seat.name: seat for seat in seats}
        self._budgets = {seat.name: RestartBudget(f"rollout worker {seat.name}") for seat in seats}
        self._make = make
        self._pool = pool
        self._newest = newest
        self._push_again = push_again
        self._may_join = may_join
        self._spawn = spawn
        self._say = say
        self._start_seconds = start_seconds
        self._clock = clock
        self._joined_at: dict[str, float] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._closing = False

    async def start(self) -> None:
        """Start all workers; returns when each has joined."""
        async with asyncio.TaskGroup() as tasks:
            for seat in self._seats.values():
                tasks.create_task(self._bring_up(seat))

    def lost(self, slot: EngineSlot, why: str) -> None:
        """A worker died: replace it."""
        if not self._closing:
            moved = len(slot.requests)
            self._say(f"{why}; {moved} requests move, a replacement starts")
            task = self._spawn(self._replace(slot, why))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def close(self) -> None:
        """End all workers."""
        self._closing = True
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        slots = list(self._pool.slots)
        await asyncio.gather(*(slot.engine.close() for slot in slots), return_exceptions=True)

    async def _replace(self, slot: EngineSlot, why: str) -> None:
        seat = self._seats[slot.engine.name]
        if self._clock() - self._joined_at[seat.name] > _SETTLED_SECONDS:
            self._budgets[seat.name].worked()
        self._budgets[seat.name].failed(why)
        try:
            await slot.engine.close()
        except EngineDied as error:
            log.info("closing what is left of %s: %s", seat.name, error)
        await self._bring_up(seat)
        self._say(f"rollout worker {seat.name} is back")

    async def _bring_up(self, seat: Seat) -> None:
        while True:
            try:
                async with asyncio.timeout(self._start_seconds):
                    engine = await self._make(seat)
                await self._enter(seat, engine)
                return
            except EngineDied as error:
                self._retry(seat, str(error))
            except TimeoutError:
                self._retry(seat, f"it did not start in {self._start_seconds:g} s")

    def _retry(self, seat: Seat, why: str) -> None:
        self._budgets[seat.name].failed(why)
        self._say(f"rollout worker {seat.name}: {why}; it is started again")

    async def _enter(self, seat: Seat, engine: Engine) -> None:
        """Bring the engine to the newest version and let it join."""
        slot = EngineSlot(engine, seat.pool, seat.limit, seat.events, devices=seat.devices)
        await self._may_join.wait()
        loaded: WeightRef | None = None
        while (ref := self._newest()) != loaded and ref is not None:
            if ref.transport != "shm":
                # It is sent to all engines together: with this one among them, and then it joins.
                self._pool.add(slot)
                self._joined_at[seat.name] = self._clock()
                await self._push_again()
                return
            async with asyncio.timeout(self._start_seconds):
                await engine.pause("abort")
                if await self._load(engine, ref):
                    slot.version, loaded = ref.version, ref
                await engine.resume()
        self._pool.add(slot)
        self._pool.join(slot)
        self._joined_at[seat.name] = self._clock()

    async def _load(self, engine: Engine, ref: WeightRef) -> bool:
        """Load a version; False when a newer one has taken its place meanwhile."""
        try:
            await engine.load(ref)
        except WeightsGone:
            if self._newest() == ref:
                raise
            return False
        return True
