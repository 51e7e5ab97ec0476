"""The way of requests into vLLM's engine core, which is closed while its version may change.

Guarantees: when `close` has returned no request is half-way in, and none comes in until `open`; one that was
aborted waits no longer.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rljob_runtime.engines.core_life import CoreLife
from rljob_runtime.engines.vllm_ticket import Ticket


class Entrance:
    """See the module's guarantees. All methods belong to one loop."""

    def __init__(self, life: CoreLife) -> None:
        self._life = life
        self._closed = False
        self._passing = 0
        self._passed = asyncio.Event()

    async def close(self) -> None:
        """Close, and wait for those that are half-way in."""
        self._closed = True
        while self._passing:
            self._passed.clear()
            await self._life.guard(self._passed.wait())

    def open(self, tickets: Iterable[Ticket]) -> None:
        """Let all in again; `tickets`: who may be waiting."""
        self._closed = False
        for ticket in tickets:
            ticket.open_gate()

    async def wait(self, ticket: Ticket) -> bool:
        """Wait until requests may enter the core; False for one that was aborted."""
        # In a loop: it may be closed again before this task runs.
        while self._closed and not ticket.aborted:
            ticket.gate = asyncio.get_running_loop().create_future()
            await self._life.guard(ticket.gate)
        return not ticket.aborted

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A request is half-way in during the body."""
        self._passing += 1
        try:
            yield
        finally:
            self._passing -= 1
            self._passed.set()
