"""A token bucket: limits how often something is done, on the loop's clock.

Guarantees: never more than `burst + rate * t` tokens are taken in any t seconds; whoever asks first is served
first; a waiter that is cancelled takes none.
"""

import asyncio


class TokenBucket:
    """Holds up to `burst` tokens and gains `rate` a second."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at: float | None = None
        # Lets waiters through in the order in which they came.
        self._turn = asyncio.Lock()

    async def take(self) -> float:
        """Take a token, waiting for it. Returns the seconds waited."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with self._turn:
            if (wait := self._missing(loop.time())) > 0:
                await asyncio.sleep(wait)
                self._missing(loop.time())  # gains what came during the sleep
            self._tokens -= 1.0
        return loop.time() - began

    def _missing(self, now: float) -> float:
        """Seconds until a token is there."""
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, 1.0 - self._tokens) / self._rate
