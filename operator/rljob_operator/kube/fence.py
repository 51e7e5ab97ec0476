"""A fence: this process refuses its own writes from the moment that another replica may hold the lease.

Guarantees: no write begins at or after the deadline or once the fence is closed, and every write is given a
time limit that ends at the deadline, so that a holder that can no longer renew stops writing before anyone
else may start. What a fence can not stop is a packet that the network delivers late; the lease's duration
exceeds the deadline by a margin for that.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class LeaseLost(RuntimeError):
    """This process does not hold its lease any more: it must not write."""


class Fence:
    """Open until `deadline` on `clock`, which only ever moves forward; `extend` moves the deadline."""

    def __init__(self, deadline: float, clock: Callable[[], float]) -> None:
        self._deadline = deadline
        self._clock = clock
        self._closed: str | None = None
        self._writing = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def deadline(self) -> float:
        """When the fence closes by itself, in seconds of its clock."""
        return self._deadline

    @property
    def closed(self) -> str | None:
        """Why it is closed; None while it is open."""
        if self._closed is None and self._clock() >= self._deadline:
            self._closed = "it was not renewed in time"
        return self._closed

    def extend(self, deadline: float) -> None:
        """The lease was renewed. A fence that was closed stays closed."""
        if self.closed is None:
            # A renewal never shortens what was held before.
            self._deadline = max(self._deadline, deadline)

    def close(self, why: str) -> None:
        """No write from now on."""
        if self.closed is None:
            self._closed = why

    @contextmanager
    def write(self) -> Iterator[float]:
        """Around one write; gives the seconds that it may take. Raises `LeaseLost` when it must not begin."""
        if self.closed is not None:
            raise LeaseLost(f"nothing was written: the lease is lost, {self._closed}")
        self._writing += 1
        self._idle.clear()
        try:
            yield self._deadline - self._clock()
        finally:
            self._writing -= 1
            if self._writing == 0:
                self._idle.set()

    async def drained(self) -> None:
        """Return when no write is under way. Each ends by the deadline, and so does this."""
        await self._idle.wait()
