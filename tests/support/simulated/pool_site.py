"""A pool of engines that only note what they are told."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np

from rljob_runtime.engines.protocol import EngineDied, Request
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import GroupRequest, RequestKey
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.record.event_log import EventLog


class RecordingEngine:
    """Notes which requests are aborted; `release` then happens as the case says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.aborted: list[str] = []
        self.dead = False

    async def abort(self, request_id: str) -> None:
        await asyncio.sleep(0.1)
        if self.dead:
            raise EngineDied(f"engine {self.name}: killed")
        self.aborted.append(request_id)


class PoolSite:
    """A pool with engines of the given limits, which have joined."""

    def __init__(self, *limits: int, joined: bool = True, policy: Policy | None = None) -> None:
        self.lost: list[str] = []
        self.changes = 0
        self.pool = EnginePool(
            asyncio.get_running_loop().time, lambda slot, why: self.lost.append(why), policy
        )
        self.pool.listen(self._changed)
        # As the rollouter does, which carries out what the router decides after every change.
        self.pool.listen(self.pool.decide)
        self.samples = 0
        self.slots = [self.add(limit) for limit in limits]
        if joined:
            for slot in self.slots:
                self.pool.join(slot)

    def _changed(self) -> None:
        self.changes += 1

    def add(self, limit: int, version: int = 0) -> EngineSlot:
        engine: Any = RecordingEngine(f"engine-{len(self.pool.slots)}")
        events = EventLog(None, 0, engine.name, "fast", clock=asyncio.get_running_loop().time)
        slot = EngineSlot(engine, "fast", limit, events, version)
        self.pool.add(slot)
        return slot

    def dispatch(self, uid: int) -> RequestKey:
        """A group of one response."""
        self.pool.dispatch(GroupRequest(uid, uid, 4, 1))
        self.pool.decide()
        return RequestKey(uid, 0)

    async def place(self, count: int) -> list[int]:
        """Places requests one after the other; on which engines."""
        self.samples += count
        keys = [self.dispatch(uid) for uid in range(self.samples - count, self.samples)]
        return [(await self.pool.acquire(key)).number for key in keys]

    def submit(
        self, slot: EngineSlot, key: RequestKey, name: str, generated: int = 0, most: int = 1000
    ) -> None:
        """A response is submitted to its engine, with a prompt of four tokens and so many of its own."""
        tokens = np.zeros(4 + generated, np.int32)
        self.pool.submitted(slot, key, Request(name, tokens, most, seed=0, generated=generated))

    def release(self, slot: EngineSlot) -> None:
        """The oldest request on this engine ends."""
        placed = self.pool._placed
        self.pool.finished(next(key for key in placed if placed[key] is slot), 1)

    def wait(self, uid: int) -> "asyncio.Task[EngineSlot]":
        return asyncio.ensure_future(self.pool.acquire(self.dispatch(uid)))

    def has_room(self) -> bool:
        return self.pool.wants_group()

    @property
    def running(self) -> list[int]:
        return [slot.running for slot in self.slots]


def virtual(main: Coroutine[Any, Any, None]) -> None:
    """Run in virtual time."""
    run_virtual(main)
