"""A stand-in for the API server's answers that a real one gives only in trouble: scripted, on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from rljob_client.credentials import Credentials
from rljob_client.shared_login import SharedLogin

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Scripted:
    """Answers requests by a script, the last entry for ever; remembers them."""

    script: list[Answer]
    url: str = ""
    seen: list[web.Request] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        body = await request.read()
        self.bodies.append(msgspec.json.decode(body) if body else None)
        return await self.script[min(len(self.seen), len(self.script)) - 1](request)

    def credentials(self, authorization: SharedLogin | None = None) -> Credentials:
        return Credentials(self.url, None, authorization)


@asynccontextmanager
async def serving(*script: Answer) -> AsyncIterator[Scripted]:
    """The server, listening."""
    scripted = Scripted(list(script))
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", scripted.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    scripted.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield scripted
    finally:
        await runner.cleanup()


def reply(code: int = 200, /, **document: Any) -> Answer:
    """One JSON document."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(document, status=code)

    return answer


def stream(*events: dict[str, Any] | bytes, hold: bool = False) -> Answer:
    """A watch: events, or bytes as they are; `hold`: it does not end."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            data = event if isinstance(event, bytes) else msgspec.json.encode(event) + b"\n"
            await response.write(data)
        if hold:
            await asyncio.get_running_loop().create_future()
        return response

    return answer


async def cut(request: web.Request) -> web.StreamResponse:
    """The connection is cut without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
