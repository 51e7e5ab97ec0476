"""An HTTP server in this process that answers as a vLLM server does, or as a test wants."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from rljob_api.algorithm import TeacherServer
from tests.support.operator.certificates import Authority

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeTeacher:
    """Scores each token with minus a tenth of its number; tests change its attributes."""

    def __init__(self) -> None:
        self.models: list[dict[str, Any]] = [{"id": "teacher", "max_model_len": 128}]
        self.tokenize: Callable[[str], list[int]] | None = None
        """Its tokenizer; None: it has no such path."""
        self.key: str | None = None
        """What it asks for."""
        self.answers: list[Answer] = []
        """To the next requests for log-probabilities, in place of the right ones."""
        self.asked: list[dict[str, Any]] = []
        """Bodies of the requests for log-probabilities."""
        self.running = 0
        self.most_running = 0
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": self.models})
        if request.path == "/tokenize" and self.tokenize is not None:
            tokens = self.tokenize((await request.json())["prompt"])
            return web.json_response({"count": len(tokens), "tokens": tokens})
        if request.path != "/v1/completions":
            return web.json_response({"detail": "Not Found"}, status=404)
        self.asked.append(await request.json())
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            return await (self.answers.pop(0) if self.answers else self.right)(request)
        finally:
            self.running -= 1

    async def right(self, request: web.Request) -> web.StreamResponse:
        """The log-probabilities that were asked for."""
        entries = [{str(token): {"logprob": -token / 10}} for token in (await request.json())["prompt"]]
        return web.json_response({"choices": [{"prompt_logprobs": [None, *entries[1:]]}]})

    def server(self, **fields: Any) -> TeacherServer:
        """The field of a job that names it."""
        return TeacherServer(url=self.url, model="teacher", **fields)


@asynccontextmanager
async def fake_teacher(authority: Authority | None = None) -> AsyncIterator[FakeTeacher]:
    """One that listens; over TLS with a certificate of `authority`, where there is one."""
    tls = None
    if authority is not None:
        own = authority.sign("server")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(own.certificate, own.key)
    fake = FakeTeacher()
    application = web.Application(client_max_size=2**24)
    application.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    fake.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        await runner.cleanup()


def status(code: int, body: Any = "busy") -> Answer:
    """An answer with this status."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=code)

    return answer


def body(content: Any) -> Answer:
    """A good status with this body."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=text, content_type="application/json")

    return answer


async def hangs_up(request: web.Request) -> web.StreamResponse:
    """The connection ends in the middle of an answer."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices"')
    assert request.transport is not None
    request.transport.close()
    return response


async def never(request: web.Request) -> web.StreamResponse:
    """No answer until the client has gone."""
    await asyncio.sleep(60)
    raise AssertionError("nobody waits so long")


def endless(sent: list[int]) -> Answer:
    """An answer without end; how much of it was taken."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 65536)
            sent.append(65536)

    return answer
