"""Sending a version to several engines at once, and what becomes of that when one of them is lost.

Guarantee: an engine that is lost while a version is broadcast ends the broadcast within seconds: the trainer
goes on, and an engine that has not got the version by then is lost too, for it waits in a group that is no
more.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sources import WeightSources

log = logging.getLogger(__name__)

SETTLE_SECONDS = 15.0
"""How long an engine may take to finish with a version after its broadcast was broken off."""


class Broadcaster(Protocol):
    """What sends a version to all engines at once: the trainer, with a collective transport."""

    turn: asyncio.Lock
    """Held while the trainer is at something that a broadcast would have to wait for."""
    starts: int
    """How often its processes were started: a group of engines that they joined ends with them."""

    async def transmit(self, ref: WeightRef) -> bool:
        """Send a version to the engines that load it, given the reference of any one of them; False where
        that was broken off."""
        ...

    async def break_off(self, ref: WeightRef, why: str) -> None:
        """An engine that `transmit` of `ref` sends to is lost: end it."""
        ...


class Broadcasts:
    """Broadcasts to the engines of one pool, one at a time."""

    def __init__(self, pool: EnginePool, sources: WeightSources, settle: float) -> None:
        """`sources` remembers the group of the last broadcast: not one that was broken off. `settle`: seconds
        that engines get to finish with a version whose broadcast was broken off."""
        self._pool = pool
        self._sources = sources
        self._settle = settle
        self._engines_changed = asyncio.Event()
        pool.listen(self._engines_changed.set)

    async def send(
        self, broadcaster: Broadcaster, ref: WeightRef, loading: Mapping["asyncio.Task[None]", EngineSlot]
    ) -> None:
        """Send a version while the engines take it, each in its task of `loading`: these have ended
        afterwards. Raises what `broadcaster` or one of the tasks raises."""
        sending = asyncio.ensure_future(self._transmit(broadcaster, ref, loading))
        try:
            # The transmission has a deadline of the trainer's, and each load one of its own.
            await asyncio.wait((sending,))
            if _failed(sending) or not sending.result():
                self._sources.forget()
                await self._give_up_waiting(ref, loading)
            else:
                await asyncio.wait(loading)
        finally:
            for task in (sending, *loading):
                task.cancel()
            outcomes = await asyncio.gather(sending, *loading, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _transmit(
        self, broadcaster: Broadcaster, ref: WeightRef, loading: Mapping["asyncio.Task[None]", EngineSlot]
    ) -> bool:
        """Send a version; False where an engine was lost on the way."""
        transmitting = asyncio.ensure_future(broadcaster.transmit(ref))
        try:
            lost = await self._over_or_broken(transmitting, loading)
            if lost is not None:
                log.warning("engine %s was lost in the broadcast of version %d", lost, ref.version)
                await broadcaster.break_off(ref, f"engine {lost} was lost")
            return await transmitting
        finally:
            transmitting.cancel()
            await asyncio.gather(transmitting, return_exceptions=True)

    async def _over_or_broken(
        self, transmitting: "asyncio.Task[bool]", loading: Mapping["asyncio.Task[None]", EngineSlot]
    ) -> str | None:
        """Wait until the transmission is over, or an engine cannot take part in it any more: its name."""
        while not transmitting.done():
            # Before the look: a loss after it ends the wait.
            self._engines_changed.clear()
            for task, slot in loading.items():
                if not slot.alive or _failed(task):
                    return slot.engine.name
            changed = asyncio.ensure_future(self._engines_changed.wait())
            under_way = [task for task in loading if not task.done()]
            # Ends with the transmission, whose deadline is the trainer's.
            try:
                await asyncio.wait((transmitting, changed, *under_way), return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
        return None

    async def _give_up_waiting(
        self, ref: WeightRef, loading: Mapping["asyncio.Task[None]", EngineSlot]
    ) -> None:
        """The group is no more: engines that do not finish with what they got will never."""
        _, stuck = await asyncio.wait(loading, timeout=self._settle)
        for task in stuck:
            slot = loading[task]
            self._pool.lost(
                slot, f"engine {slot.engine.name}: the broadcast of version {ref.version} was broken off"
            )


def _failed(task: "asyncio.Task[Any]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
