"""Wakes whoever waits for something to change.

Guarantees: a notification between a check and the wait that follows it in the same turn of the loop is not
missed; every wait for a condition has a deadline.
"""

import asyncio
from collections.abc import Callable


class ChangeSignal:
    """Notified whenever something has changed. It does not say what: those who wait look for themselves."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake all who wait now."""
        # Who waits again as soon as it is woken waits for the next notification.
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            # One that was cancelled in this turn of the loop is still among them.
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next notification."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    async def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until `condition` holds, which is looked at after each notification. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while not condition():
                await self.wait()
