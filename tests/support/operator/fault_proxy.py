"""An HTTP proxy in front of an API server that does harm on command.

It speaks plain HTTP on the loopback address and passes requests on, with their tokens. `inject` spoils single
requests, `cut` breaks what is under way, `expire_watches` makes open watches end with 410, and in a
`blackout` nothing passes in either direction. A request whose client gave up in a blackout is never passed
on, as on a network whose packets are lost.
"""

import asyncio
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web
from yarl import URL

_OWN_HEADERS = {"Host", "Connection", "Transfer-Encoding", "Content-Length"}
"""Headers that belong to one connection: each side makes its own."""


@dataclass(frozen=True)
class Answer:
    """The proxy answers itself; the request is not passed on."""

    code: int
    message: str = "injected"
    reason: str = ""
    retry_after: int | None = None


@dataclass(frozen=True)
class Delay:
    """The request is passed on late."""

    seconds: float


@dataclass(frozen=True)
class Cut:
    """The connection breaks instead of an answer. `carried_out`: after the API server did as asked."""

    carried_out: bool = False


@dataclass(frozen=True)
class CutAfter:
    """The connection breaks in the middle of the answer."""

    bytes: int


Fault = Answer | Delay | Cut | CutAfter


@dataclass
class _Order:
    fault: Fault
    times: int
    method: str
    containing: str


class FaultProxy:
    """Use as a context manager, on the loop that runs meanwhile."""

    def __init__(self, upstream: str, tls: ssl.SSLContext) -> None:
        """`upstream`: the API server's URL."""
        self._upstream = upstream
        self._tls = tls
        self._orders: list[_Order] = []
        self._streams: dict[web.StreamResponse, web.Request] = {}
        # Set except in a blackout.
        self._lit = asyncio.Event()
        self._lit.set()
        self.watched = asyncio.Event()
        """Set while a watch is open."""
        self.passed: list[str] = []
        """`METHOD path?query` of each request that was passed on."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handler_cancellation=True,  # a client that gives up ends its request here, too
            auto_decompress=False,
            shutdown_timeout=0.1,
        )

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        # Without an end: a watch stays open as long as its client wants.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=60.0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lit.set()
        self.cut()
        await self._runner.cleanup()
        await self._session.close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def inject(self, fault: Fault, times: int = 1, method: str = "", containing: str = "") -> None:
        """Spoil the next `times` requests of `method` (empty: any) whose path or query has `containing`."""
        self._orders.append(_Order(fault, times, method, containing))

    @property
    def pending(self) -> int:
        """Requests that are still to be spoiled."""
        return sum(order.times for order in self._orders)

    def cut(self) -> None:
        """Break every connection with an answer under way."""
        for request in self._streams.values():
            _abort(request)

    async def expire_watches(self) -> int:
        """End every open watch as an API server does that has forgotten its resourceVersion. How many."""
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        line = json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
        told = await self._tell_watches(line)
        for request in told:
            _abort_after_flush(request)
        return len(told)

    async def garble_watches(self) -> int:
        """Put a line into every open watch that is no JSON. How many."""
        return len(await self._tell_watches(b'{"type": "MODI\n'))

    async def _tell_watches(self, line: bytes) -> list[web.Request]:
        """Write a line to each watch that does not end just now; their requests."""
        told = []
        for response in self._watches():
            request = self._streams.get(response)
            with suppress(ConnectionError):  # its client has gone
                await response.write(line)
                told += [request] if request is not None else []
        return told

    @contextmanager
    def blackout(self) -> Iterator[None]:
        """Nothing passes while this lasts."""
        self._lit.clear()
        try:
            yield
        finally:
            self._lit.set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        await self._lit.wait()
        fault = self._fault_for(request)
        match fault:
            case Answer():
                return _refusal(fault)
            case Cut(carried_out=False):
                _abort(request)
                return web.Response()
            case Delay(seconds):
                await asyncio.sleep(seconds)
        # Again: a blackout may have begun during a delay.
        await self._lit.wait()
        self.passed.append(f"{request.method} {request.raw_path}")
        headers = {name: value for name, value in request.headers.items() if name not in _OWN_HEADERS}
        url = URL(self._upstream + request.raw_path, encoded=True)
        async with self._session.request(request.method, url, headers=headers, data=body or None) as answer:
            if isinstance(fault, Cut):
                # Read to its end: the API server has done as asked.
                await answer.read()
                _abort(request)
                return web.Response()
            return await self._pass_back(
                request, answer, fault.bytes if isinstance(fault, CutAfter) else None
            )

    async def _pass_back(
        self, request: web.Request, answer: aiohttp.ClientResponse, cut_after: int | None
    ) -> web.StreamResponse:
        headers = {name: value for name, value in answer.headers.items() if name not in _OWN_HEADERS}
        response = web.StreamResponse(status=answer.status, headers=headers)
        response.content_length = answer.content_length
        await self._lit.wait()
        await response.prepare(request)
        self._streams[response] = request
        self._note_watches()
        sent = 0
        try:
            # Whole lines of a watch: others may be written between two of them.
            lines = answer.content if _is_watch(request) else answer.content.iter_any()
            async for chunk in lines:
                await self._lit.wait()
                if cut_after is not None and sent + len(chunk) > cut_after:
                    await response.write(chunk[: cut_after - sent])
                    _abort_after_flush(request)
                    break
                sent += len(chunk)
                await response.write(chunk)
        finally:
            del self._streams[response]
            self._note_watches()
        return response

    def _watches(self) -> list[web.StreamResponse]:
        return [each for each, request in self._streams.items() if _is_watch(request)]

    def _note_watches(self) -> None:
        if self._watches():
            self.watched.set()
        else:
            self.watched.clear()

    def _fault_for(self, request: web.Request) -> Fault | None:
        for order in self._orders:
            if order.times and order.method in ("", request.method) and order.containing in request.raw_path:
                order.times -= 1
                return order.fault
        return None


def _is_watch(request: web.Request) -> bool:
    return "watch=true" in request.query_string


def _refusal(fault: Answer) -> web.Response:
    status = {"kind": "Status", "code": fault.code, "reason": fault.reason, "message": fault.message}
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    return web.json_response(status, status=fault.code, headers=headers)


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _abort_after_flush(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()
