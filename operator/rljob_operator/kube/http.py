"""Answers the kubelet's probes and Prometheus: /healthz, /readyz, /metrics.

Guarantees: an answer that is not "ok" says why, in one line; nothing else is served.
"""

import os
from collections.abc import Awaitable, Callable
from errno import errorcode
from types import TracebackType
from typing import Protocol, Self

from aiohttp import web

Check = Callable[[], str | None]
"""What is wrong; None when nothing is."""


class CannotListen(Exception):
    """The address is not this machine's, or another process has the port."""


class Exposition(Protocol):
    """Metrics as Prometheus reads them."""

    content_type: str

    def render(self) -> bytes:
        """All series, as `content_type`."""


class HealthServer:
    """An HTTP server on the running loop: one that hangs is not alive. Use as a context manager, which raises
    `CannotListen`."""

    def __init__(
        self, metrics: Exposition, alive: Check, ready: Check, port: int, host: str | None = None
    ) -> None:
        """`alive`: whether a restart of this process would help. `ready`: whether it does its work. `port`: 0
        for a free one. `host`: None for all addresses."""
        self._metrics = metrics
        self._host = host
        self._port = port
        application = web.Application()
        application.router.add_get("/healthz", _probe(alive))
        application.router.add_get("/readyz", _probe(ready))
        application.router.add_get("/metrics", self._render)
        # Probes come every few seconds, and would fill the log.
        self._runner = web.AppRunner(application, access_log=None)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            where = "all addresses" if self._host is None else self._host
            # asyncio's own words repeat the address; a name that is not found has a number of its own.
            number = error.errno or 0
            why = os.strerror(number) if number in errorcode else error.strerror or error
            raise CannotListen(
                f"cannot listen on port {self._port} of {where}: {why}; choose others by --port and --host"
            ) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        port: int = self._runner.addresses[0][1]
        return port

    async def _render(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": self._metrics.content_type})


def _probe(check: Check) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        trouble = check()
        return web.Response(text=trouble or "ok", status=503 if trouble else 200)

    return answer
