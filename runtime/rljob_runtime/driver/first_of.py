"""Waiting for whatever comes first."""

import asyncio
from collections.abc import Awaitable


async def first_of(seconds: float, *waits: Awaitable[object]) -> int | None:
    """Index of the wait that ends first, None where none does within `seconds`; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    return next((index for index, task in enumerate(tasks) if task in done), None)
