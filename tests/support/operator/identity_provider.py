"""An identity provider of OpenID Connect on loopback, for tests."""

import asyncio
import base64
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.support.operator.certificates import Authority

DISCOVERY, TOKEN = "/.well-known/openid-configuration", "/token"


def token_until(seconds: float, **claims: Any) -> str:
    """A JSON Web Token, unsigned, that is valid for so long from now."""
    return token_of({"exp": int(time.time()) + seconds, **claims})


def token_of(content: Any) -> str:
    """A JSON Web Token with this content, unsigned."""

    def part(said: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part(content)}.sign"


class IdentityProvider:
    """Gives tokens for an hour, and another refresh token each time: the old one with a + behind it."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, str]] = []
        """The forms that were sent to the token endpoint, with `Authorization` where there was one."""
        self.says: dict[str, tuple[int, Any]] = {}
        """HTTP status and JSON instead, by path."""
        self.location = "/elsewhere"
        """Of those that are redirects."""
        self.silent = ""
        """The path that gives no answer."""
        self.dripping = ""
        """The path whose answer comes byte by byte, without end."""
        self.only_body = False
        """A client in a header is not known."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == self.silent:
            await asyncio.Event().wait()
        if request.path == self.dripping:
            return await self._drip(request)
        if request.path in self.says:
            status, said = self.says[request.path]
            return web.json_response(said, status=status, headers={"Location": self.location})
        if request.path == DISCOVERY:
            return web.json_response({"token_endpoint": f"{self.url}{TOKEN}"})
        assert request.path == TOKEN
        form = {key: str(value) for key, value in (await request.post()).items()}
        header = request.headers.get("Authorization")
        self.asked.append({**form, **({"Authorization": header} if header else {})})
        if self.only_body and header:
            return web.json_response({"error": "invalid_client"}, status=401)
        tokens = {"id_token": token_until(3600), "refresh_token": f"{form['refresh_token']}+"}
        return web.json_response({"access_token": "a", "token_type": "bearer", **tokens})

    @staticmethod
    async def _drip(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b" ")
            await asyncio.sleep(0.05)


@asynccontextmanager
async def identity_provider(authority: Authority) -> AsyncIterator[IdentityProvider]:
    """One with a certificate of the authority's."""
    made = IdentityProvider()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own = authority.sign("provider")
    tls.load_cert_chain(own.certificate, own.key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    made.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()
