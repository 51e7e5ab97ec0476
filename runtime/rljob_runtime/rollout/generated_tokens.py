"""Asks an engine how many tokens it has generated."""

import asyncio

from rljob_runtime.engines.protocol import EngineDied
from rljob_runtime.rollout.engine_slot import EngineSlot

ANSWER_SECONDS = 20.0
"""An engine that takes longer to say how many tokens it has generated counts as one that has done nothing."""


async def generated_tokens(slot: EngineSlot, seconds: float) -> int:
    """What an engine says that it has generated since it started. Raises `EngineDied`, and `TimeoutError`
    where it does not say within so many seconds."""
    async with asyncio.timeout(seconds):
        snapshot = await slot.engine.load_snapshot()
    # No more than it can have: one that counts on while its requests hang would hide that for ever.
    return min(snapshot.generated_tokens, slot.promised)


async def told_tokens(slot: EngineSlot, seconds: float = ANSWER_SECONDS) -> int | None:
    """The same; None where it does not say."""
    try:
        return await generated_tokens(slot, seconds)
    except (EngineDied, TimeoutError):
        return None
