"""The job's queue, kept alive: its host, the driver's client, and what others need to reach it.

Guarantees: a lost host is replaced at the same address with the same keys, then `on_back` is called so that
what it held is put again; a host that does not start counts as one that was lost, and a host that keeps
failing ends the job (`GivenUp`). The host is on the driver's node, and is lost with it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.net.auth import Endpoint
from rljob_runtime.net.keys import Keyring, client_keys
from rljob_runtime.queue.client import AsyncQueueClient, QueueError
from rljob_runtime.queue.host import start_host
from rljob_runtime.restarts import RestartBudget
from rljob_runtime.site.nodes import only_on
from rljob_runtime.site.scratch import Scratch, temporary

_START_SECONDS = 120.0
_RESTARTS = 3
"""Losses in a row that are answered with another host."""
_PATIENCE_SECONDS = _RESTARTS * _START_SECONDS + 60.0
"""How long the driver's client waits for a silent host: for its loss to be noticed, and for as many starts of
another one as there may be."""
_STOP_SECONDS = 10.0
_COUNTERS_SECONDS = 2.0
"""The counters are for the log alone: an end does not wait longer for them."""
_SETTLED_SECONDS = 60.0
"""A host that lived this long did its work: its next loss is not one in a row."""

log = logging.getLogger(__name__)


class QueueService:
    """See the module's guarantees."""

    client: AsyncQueueClient
    endpoint: Endpoint

    def __init__(
        self,
        capacity_samples: int,
        home: str,
        address: str | None,
        keyring: Keyring,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        on_back: Callable[[], Awaitable[None]],
    ) -> None:
        """`home`: id of the driver's Ray node; `address`: its IP address, where others reach the queue from
        other machines. `spawn` starts a task whose failure ends the job."""
        self._home = home
        self._server_keys, self.keys = keyring.pair("queue")
        self._capacity = capacity_samples
        self._spawn = spawn
        self._on_back = on_back
        # For the queue's socket on one machine.
        self._folder: Scratch | None = None
        if address is None:
            self._folder = temporary("queue")
            self._address = f"ipc://{self._folder.path / 'queue'}"
        else:
            self._address = f"tcp://{address}:0"
        self._budget = RestartBudget("the queue host", _RESTARTS)
        self._term = 0
        self._host: Any = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the host; `client` and `endpoint` are there afterwards."""
        # Ends: each failed start is charged, and too many raise `GivenUp`.
        while not await self._comes_up():
            pass
        self.client = AsyncQueueClient(
            self.endpoint, client_keys(self.keys), "driver", patience_seconds=_PATIENCE_SECONDS
        )
        await self.client.open()
        self._watching = self._spawn(self._watch())

    async def reset(self, ledger: Ledger) -> None:
        """Empty the queue and begin a new term in which `ledger` is done."""
        # The number first: a host that replaces a lost one from here on begins with it.
        self._term += 1
        await self.client.reset(self._term, ledger.watermark, ledger.ahead, _PATIENCE_SECONDS)

    async def close(self) -> None:
        """End the queue."""
        if self._watching is not None:
            # First the watch, to which the stop would be a loss.
            self._watching.cancel()
            await self._log_counters()
            await self.client.close()
            await self._stop_host()
        if self._folder is not None:
            self._folder.close()

    async def _log_counters(self) -> None:
        """What went through the queue, and what it refused, for who looks for a lost or doubled group."""
        try:
            log.info("the queue at its end: %s", await self.client.stats(_COUNTERS_SECONDS))
        except QueueError as error:
            log.info("the queue's counters are not known: %s", error)

    async def _stop_host(self) -> None:
        from ray.exceptions import RayError

        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._host.stop.remote()
        except (RayError, TimeoutError) as error:
            log.info("the queue host was gone, or did not stop in time: %s", error)

    async def _comes_up(self) -> bool:
        """Start a host; False where it did not start, which is charged as a loss. Raises `GivenUp`."""
        from ray.exceptions import RayError

        try:
            await self._start_host()
        except TimeoutError:
            why = f"it did not start within {_START_SECONDS:g} s"
        except RayError as error:
            why = f"it did not start: {str(error).strip().splitlines()[-1]}"
        else:
            return True
        log.warning("the queue host: %s", why)
        self._kill_host()
        self._budget.failed(why)
        return False

    def _kill_host(self) -> None:
        """End a host that may still be starting, so that it cannot take the address of the next one."""
        import ray

        ray.kill(self._host)

    async def _start_host(self) -> None:
        self._host = start_host(
            self._server_keys, self._capacity, self._address, term=self._term,
            scheduling_strategy=only_on(self._home),
        )  # fmt: skip
        async with asyncio.timeout(_START_SECONDS):
            self.endpoint = await self._host.endpoint.remote()
        # A host that replaces it listens where the clients already are.
        self._address = self.endpoint.address

    async def _watch(self) -> None:
        from ray.exceptions import RayError

        while True:
            began = time.monotonic()
            try:
                # No deadline: it lasts as long as the host lives, and Ray tells of its death.
                why = await self._host.wait_stopped.remote() or "it stopped"
            except RayError as error:
                why = str(error).splitlines()[0]
            if time.monotonic() - began > _SETTLED_SECONDS:
                self._budget.worked()
            self._budget.failed(why)
            # Ends: each failed start is charged, and too many raise `GivenUp`.
            while not await self._comes_up():
                pass
            await self._on_back()
