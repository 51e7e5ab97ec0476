"""Sends the trainer's weights to the engines: as a new version, or once more for engines that came later.

Guarantees: no engine gets weights while the trainer is being brought back (`may_join` is clear then); an
engine that joins within a version of several steps never gets weights that are newer than what the other
engines hold under the same version number.
"""

import asyncio
import logging
from typing import Protocol

from rljob_runtime.driver.rank_calls import TrainerDied
from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.groups.staleness import Bound
from rljob_runtime.rollout.broadcast import Broadcaster
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sync import Pull, Push

log = logging.getLogger(__name__)


class Publisher(Broadcaster, Protocol):
    """What weight delivery needs of the trainer."""

    steps: int
    """Steps that the trainer's weights have behind them."""

    @property
    def stores(self) -> bool:
        """Whether versions are stored, so that engines load them while the trainer goes on."""
        ...

    async def publish(self, version: int) -> None:
        """Make the current weights `version`. Raises `TrainerDied`."""
        ...

    async def ref(self, version: int) -> WeightRef:
        """Where engines get the version that was published last. Raises `TrainerDied`."""
        ...


class WeightDelivery:
    """See the module's guarantees."""

    def __init__(self, trainer: Publisher, sync: Push | Pull, pool: EnginePool, bound: Bound) -> None:
        """`sync` brings a published version to the engines of `pool`; `bound` numbers versions by steps."""
        self.may_join = asyncio.Event()
        """Set while the trainer and its weights are where the job stands; clear while it is brought back."""
        self.pinned: int | None = None
        """Steps behind the weights that engines are to keep, for they are evaluated; None: any may come."""
        self._trainer = trainer
        self._sync = sync
        self._pool = pool
        self._bound = bound

    async def send(self, version: int) -> None:
        """Give all engines the trainer's weights as `version`. Raises `TrainerDied`."""
        await self._trainer.publish(version)
        ref = await self._trainer.ref(version)
        await self._sync.deliver(ref, None if self._trainer.stores else self._trainer)

    async def send_again(self) -> None:
        """Send engines that have just come what the trainer holds: a collective transport stores nothing that
        they could load by themselves."""
        # Collective transports are pushed: with pull a version must be stored.
        assert isinstance(self._sync, Push)
        try:
            await self._sync.again(self._current, self._trainer)
        except TrainerDied as error:
            # The training loop meets the same error, and its recovery sends a version to all engines.
            log.info("the newest version is not sent again: %s", error)

    async def _current(self) -> WeightRef | None:
        """The trainer's weights while it stands still; None where they are not to be sent now: no engine
        waits for them, or the trainer is being brought back, which ends with a version for all."""
        step, slots = self._trainer.steps, self._pool.training_slots
        # Looked at while the trainer's turn is held: neither its step nor its weights change meanwhile.
        if not self.may_join.is_set() or all(slot.entered for slot in slots):
            return None
        ahead = step % self._bound.steps_per_version or self.pinned not in (None, step)
        if ahead and any(slot.joined for slot in slots):
            # The trainer is ahead of what the others have: within a version, or while they are evaluated.
            # Newcomers wait for the next one, unless nobody else generates: then there would be no next one.
            return None
        version = self._bound.version_at(step)
        await self._trainer.publish(version)
        return await self._trainer.ref(version)
