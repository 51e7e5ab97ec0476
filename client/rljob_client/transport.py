"""One request to the API server, one answer.

Guarantees:
- every request ends within its time limit: with its answer or with an `ApiError`;
- a request that ran out of time is not delivered later: its connection is reset and unsent bytes are dropped;
- a token, certificate or certificate authority that was rotated since it was read is read again, and the
  request sent once more, before it counts as refused;
- with a new certificate no old connection is used, and those are closed soon after their last use;
- no error shows the password of a proxy, nor its traceback;
- each request is counted, by verb, type and HTTP status, once its answer is there.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from rljob_client.connections import Connections
from rljob_client.credentials import Credentials, CredentialsError
from rljob_client.decoding import decode
from rljob_client.errors import ApiError, NoCredentials, Unreachable, error_of, refusal_of
from rljob_client.identity import Identity
from rljob_client.passwords import without_passwords
from rljob_client.resources import Resource

AnswerT = TypeVar("AnswerT")

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


class CallObserver(Protocol):
    """Whoever counts requests."""

    def api_called(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """A request has its whole answer, after so many seconds; a watch, the beginning of it. `code` is the
        HTTP status, `none` where that did not come. May not block or raise."""


class Uncounted:
    """An observer for whoever makes too few requests to count them."""

    def api_called(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """Nothing is done with it."""


class Transport:
    """Connections to one API server. Use as a context manager."""

    def __init__(
        self,
        credentials: Credentials,
        observer: CallObserver,
        user_agent: str,
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
        self._connections: dict[ssl.SSLContext | None, Connections] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._connections.values():
            await each.close()

    async def send(self, call: Call, timeout: float) -> bytes:
        """The answer's body. Raises `ApiError`; `timeout`: seconds for everything."""
        deadline = asyncio.get_running_loop().time() + timeout
        async with _limit(call, deadline, f"the login has not ended within {timeout:.3g} s", sent=False):
            who = await self._who(call)
        async with _limit(call, deadline, f"no answer within {timeout:.3g} s"):
            return await self._send(call, who)

    @asynccontextmanager
    async def stream(self, call: Call, silence: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that goes on. They end when the server ends the answer; reading them raises
        `Unreachable` when the connection breaks or nothing comes for `silence` seconds, and entering it where
        the answer has not begun, or a refusal not ended, by then."""
        deadline = asyncio.get_running_loop().time() + silence
        async with _limit(call, deadline, f"the login has not ended within {silence:.3g} s", sent=False):
            who = await self._who(call)
        # A limit of aiohttp's for a silent socket is none for a proxy's answer, nor for one that trickles in.
        async with _limit(call, deadline, f"no answer within {silence:.3g} s"):
            response = await self._ask(call, who, silence)
        try:
            if response.status >= 300:
                raise _error(call, response, await response.read())
            yield self._lines(call, response.content)
        finally:
            response.close()

    async def _send(self, call: Call, who: Identity | None) -> bytes:
        async with await self._ask(call, who) as response:
            body = await response.read()
        if response.status >= 300:
            raise _error(call, response, body)
        return body

    async def _who(self, call: Call) -> Identity | None:
        """Who speaks; waits for a login where one is needed. Raises `NoCredentials`."""
        if (login := self._credentials.authorization) is None:
            return None
        try:
            return await login.identity()
        except CredentialsError as error:
            raise NoCredentials(str(call), str(error)) from None

    async def _ask(
        self, call: Call, who: Identity | None, silence: float | None = None
    ) -> aiohttp.ClientResponse:
        """The answer, as far as `_request_over` waits for it. Raises `ApiError`."""
        try:
            response = await self._request(call, who, silence)
            if response.status == 401 and who is not None and (other := await self._other(who)) is not None:
                return await self._request(call, other, silence)
            return response
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(call, error) from None
        except CredentialsError as error:
            raise NoCredentials(str(call), str(error)) from None

    async def _other(self, refused: Identity) -> Identity | None:
        login = self._credentials.authorization
        return None if login is None else await login.other(refused)

    async def _request(
        self, call: Call, who: Identity | None, silence: float | None
    ) -> aiohttp.ClientResponse:
        """`_request_over`, also by an authority that was rotated."""
        tls, authority = self._credentials.tls_of(who), self._credentials.authority
        try:
            return await self._request_over(tls, call, who, silence)
        except aiohttp.ClientConnectorCertificateError:
            if tls is None or authority is None or not await asyncio.to_thread(authority.changed, tls):
                raise
            return await self._request_over(self._credentials.tls_of(who), call, who, silence)

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
            raise self._unreachable(call, error) from None

    async def _request_over(
        self, tls: ssl.SSLContext | None, call: Call, who: Identity | None, silence: float | None
    ) -> aiohttp.ClientResponse:
        """The answer, which is there whole and can be read again; with `silence` its beginning alone is, but
        for a refusal."""
        began = self._clock()
        code = "none"
        try:
            response = await (await self._connections_with(tls)).ask(
                _METHODS[call.verb],
                URL(self._url(call), encoded=True),
                self._headers_of(call, who),
                call.body,
                # No total: a watch goes on for minutes, and all else has a limit around it.
                aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence),
            )
            if silence is None or response.status >= 300:
                await response.read()
            code = str(response.status)
            return response
        finally:
            self._observer.api_called(call.verb, call.resource.plural, code, self._clock() - began)

    async def _connections_with(self, tls: ssl.SSLContext | None) -> Connections:
        """Those with this TLS alone: none is used with another certificate than its own."""
        if tls not in self._connections:
            unused = [other for other, each in self._connections.items() if not each.in_use]
            # All at once, so that nobody begins with one that is being closed.
            for each in [self._connections.pop(other) for other in unused]:
                await each.close()
        if tls not in self._connections:
            self._connections[tls] = self._credentials.connections.opened(tls, self._headers)
        return self._connections[tls]

    def _url(self, call: Call) -> str:
        query = urlencode(call.query, quote_via=quote)
        return f"{self._credentials.server}{call.path}" + (f"?{query}" if query else "")

    def _headers_of(self, call: Call, who: Identity | None) -> CIMultiDict[str]:
        headers = CIMultiDict(self._credentials.headers)
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        if who is not None and who.header is not None:
            headers["Authorization"] = who.header
        return headers

    def _unreachable(self, call: Call, error: Exception) -> Unreachable:
        """The error to raise in place of aiohttp's, and not from it: there a proxy's URL is told whole."""
        why, sent = _what_broke(without_passwords(self._credentials.server), error)
        return Unreachable(str(call), without_passwords(why), sent=sent)


@asynccontextmanager
async def _limit(call: Call, deadline: float, late: str, *, sent: bool = True) -> AsyncIterator[None]:
    """Ends the body at `deadline`, by the loop's clock, with an `Unreachable` that says `late`."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise Unreachable(str(call), late, sent=sent) from None


def _what_broke(where: str, error: Exception) -> tuple[str, bool]:
    """In words, and whether the request may have been sent. It was not where there was no connection."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate of {where} is not accepted: {error.certificate_error}", False
    if isinstance(error, aiohttp.ClientHttpProxyError):
        proxy = error.request_info.real_url
        said = f"{error.status} {error.message}"
        return f"the proxy {proxy.host}:{proxy.port} makes no connection to {where}: {said}", False
    if isinstance(error, aiohttp.ClientConnectorError):
        proxied = isinstance(error, aiohttp.ClientProxyConnectionError)
        to = f"the proxy {error.host}:{error.port}" if proxied else where
        return f"cannot connect to {to}: {error.os_error.strerror or error.os_error}", False
    if isinstance(error, (aiohttp.ServerTimeoutError, TimeoutError)):
        return f"{where} is silent", True
    return f"the connection to {where} broke: {error or type(error).__name__}", True


def answer_of(call: Call, body: bytes | msgspec.Raw, kind: type[AnswerT]) -> AnswerT:
    """What an answer to `call` says, decoded as `kind`. Raises `Unreachable` where it is something else."""
    try:
        return decode(body, kind)
    except msgspec.DecodeError as error:
        raise Unreachable(str(call), f"the answer is not what the API server gives: {error}") from None


def _error(call: Call, response: aiohttp.ClientResponse, body: bytes) -> ApiError:
    return error_of(str(call), refusal_of(response.status, body, response.headers.get("Retry-After")))
