"""Asks the parts of a job what they have done for its groups so far."""

import asyncio
from collections.abc import Callable

from rljob_runtime.driver.stall import Activity
from rljob_runtime.fleet.fleet import Fleet
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.generated_tokens import told_tokens
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.rollouter import Rollouter


class JobActivity:
    """Looks at all parts when it is called. A look costs a call to each engine: it is for a step that waits,
    now and then."""

    def __init__(
        self, pool: EnginePool, fleet: Fleet, rollouter: Rollouter, rewards: Callable[[], int]
    ) -> None:
        """`rewards`: how many responses have come back from the reward function."""
        self._pool = pool
        self._fleet = fleet
        self._rollouter = rollouter
        self._rewards = rewards

    async def __call__(self) -> Activity:
        """What has been done by now. Takes `generated_tokens.ANSWER_SECONDS` at most."""
        # A copy: engines come and go while they are asked.
        slots = list(self._pool.slots)
        tokens = await asyncio.gather(*(self._tokens(slot) for slot in slots))
        # An engine that takes part in an update gets no requests until the update's deadlines have ended it.
        updating = any(slot.entered and not slot.joined and not slot.leaving for slot in slots)
        return Activity(
            tuple(sorted(each for each in tokens if each is not None)),
            self._rewards(),
            self._rollouter.counts.accepted,
            busy=updating or self._fleet.starting,
        )

    async def _tokens(self, slot: EngineSlot) -> tuple[str, int] | None:
        tokens = await told_tokens(slot)
        return None if tokens is None else (slot.engine.name, tokens)
