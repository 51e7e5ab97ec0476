"""One request to the API server, one answer.

Guarantees:
- every request ends within its time limit: with its answer or with an `ApiError`;
- a request that ran out of time is not delivered later: its connection is reset and unsent bytes are dropped;
- each request is counted, by verb, type and HTTP status.
"""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from rljob_operator.kube.credentials import Credentials, CredentialsError
from rljob_operator.kube.errors import ApiError, Unauthorized, Unreachable, error_of, refusal_of
from rljob_operator.kube.observer import KubeObserver
from rljob_operator.kube.resources import Resource

_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "apply": "PATCH",
    "patch": "PATCH",
    "delete": "DELETE",
}
_CONNECT_SECONDS = 10.0
_LONGEST_LINE = 32 * 1024 * 1024
"""Bytes of one watch event; the API server's own limit for an object is below 4 MiB."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""`struct linger`: on, 0 seconds. Closing the socket then sends a reset."""


@dataclass(frozen=True)
class Call:
    """A request."""

    verb: str
    """get, list, watch, create, apply, patch or delete."""
    resource: Resource
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    content_type: str = "application/json"

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class Transport:
    """A pool of connections to one API server. Use as a context manager."""

    def __init__(
        self,
        credentials: Credentials,
        observer: KubeObserver,
        user_agent: str = "rljob-operator",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = credentials
        self._observer = observer
        self._clock = clock
        self._headers = {
            "Accept": "application/json",
            # A compressed page costs both sides more time than it saves inside a cluster.
            "Accept-Encoding": "identity",
            "User-Agent": user_agent,
        }

    async def __aenter__(self) -> Self:
        tls = self._credentials.tls
        self._session = aiohttp.ClientSession(
            # No limit of connections: a lease must be renewed however many requests are under way.
            connector=aiohttp.TCPConnector(limit=0, ssl=tls or False, socket_factory=_resetting_socket),
            # The cookie of a load balancer would keep all requests at one API server.
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(self, call: Call, timeout: float) -> bytes:
        """The answer's body. Raises `ApiError`; `timeout`: seconds for everything."""
        try:
            async with asyncio.timeout(timeout):
                try:
                    return await self._send_once(call)
                except Unauthorized:
                    token = self._credentials.token
                    # The token on disk may have been rotated since it was read: try that one, once.
                    if token is None or not token.refused():
                        raise
                    return await self._send_once(call)
        except TimeoutError:
            raise Unreachable(str(call), f"no answer within {timeout:.3g} s") from None
        except CredentialsError as error:
            raise Unauthorized(str(call), str(error)) from None

    @asynccontextmanager
    async def stream(self, call: Call, silence: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that goes on. They end when the server ends the answer; reading them raises
        `Unreachable` when the connection breaks or nothing comes for `silence` seconds."""
        began = self._clock()
        code = "none"
        refused = None
        try:
            response = await self._request(call, silence)
            code = str(response.status)
            if response.status >= 300:
                refused = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(str(call), self._explain(error)) from error
        except CredentialsError as error:
            raise Unauthorized(str(call), str(error)) from None
        finally:
            self._count(call, code, began)
        try:
            if refused is not None:
                raise _error(call, response, refused)
            yield self._lines(call, response.content)
        finally:
            response.close()

    async def _send_once(self, call: Call) -> bytes:
        began = self._clock()
        code = "none"
        try:
            async with await self._request(call) as response:
                body = await response.read()
                code = str(response.status)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(str(call), self._explain(error)) from error
        finally:
            self._count(call, code, began)
        if response.status >= 300:
            raise _error(call, response, body)
        return body

    async def _lines(self, call: Call, content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
        begun: list[bytes] = []
        try:
            # Not by lines: aiohttp refuses lines that are shorter than many an object.
            async for chunk in content.iter_any():
                # A chunk may end within a line, and may hold many lines.
                first, *others = chunk.split(b"\n")
                begun.append(first)
                for other in others:
                    if line := b"".join(begun):
                        yield line
                    begun = [other]
                if sum(map(len, begun)) > _LONGEST_LINE:
                    raise Unreachable(str(call), f"a line of the answer exceeds {_LONGEST_LINE:,} bytes")
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(str(call), self._explain(error)) from error

    def _request(
        self, call: Call, silence: float | None = None
    ) -> Coroutine[Any, Any, aiohttp.ClientResponse]:
        query = urlencode(call.query, quote_via=quote)
        url = f"{self._credentials.server}{call.path}" + (f"?{query}" if query else "")
        headers = {} if call.body is None else {"Content-Type": call.content_type}
        if self._credentials.token is not None:
            headers["Authorization"] = f"Bearer {self._credentials.token.read()}"
        return self._session.request(
            _METHODS[call.verb],
            URL(url, encoded=True),
            data=call.body,
            headers=headers,
            # A redirect would carry the token to another host.
            allow_redirects=False,
            # No total: a watch goes on for minutes, and `send` sets a limit around all other calls.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence),
        )

    def _count(self, call: Call, code: str, began: float) -> None:
        self._observer.api_called(call.verb, call.resource.plural, code, self._clock() - began)

    def _explain(self, error: Exception) -> str:
        where = self._credentials.server
        if isinstance(error, aiohttp.ClientConnectorError):
            return f"cannot connect to {where}: {error.os_error.strerror or error.os_error}"
        if isinstance(error, (aiohttp.ServerTimeoutError, TimeoutError)):
            return f"{where} is silent"
        return f"the connection to {where} broke: {error or type(error).__name__}"


def _error(call: Call, response: aiohttp.ClientResponse, body: bytes) -> ApiError:
    return error_of(str(call), refusal_of(response.status, body, response.headers.get("Retry-After")))


def _resetting_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that is reset when it is closed, instead of delivering what it still holds in its own time."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    return made
