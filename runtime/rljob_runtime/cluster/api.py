"""The driver's few requests to the Kubernetes API server, over HTTP.

Guarantees: every request has a deadline, and a watch ends when it has been silent for too long; an error says
whether trying again can help (`ApiUnavailable`) or not (`ApiRefused`); a token that the server refuses is
read again once; neither tokens nor bodies are logged.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Self

import aiohttp
import msgspec

from rljob_runtime.cluster.credentials import Credentials, CredentialsError

_REQUEST_SECONDS = 30.0
WATCH_SECONDS = 300
"""The server ends a watch after this time; it is then begun anew."""
_SILENCE_SECONDS = 150.0
"""The server sends a bookmark about every minute: after so long a silence the connection is dead."""
_MOST_EVENT_BYTES = 16 * 2**20
"""Ten times what etcd takes for one object by default (1.5 MiB)."""
_MAY_PASS = frozenset({408, 409, 425, 429})
"""Client errors that are about the moment, not about the request: timeout, conflict, too early, too many
requests."""


class ApiUnavailable(RuntimeError):
    """The server could not be reached, or could not answer now; the same request may succeed later."""

    def __init__(self, message: str, *, without_effect: bool = False) -> None:
        """`without_effect`: it is certain that the request changed nothing."""
        super().__init__(message)
        self.without_effect = without_effect


class ApiRefused(RuntimeError):
    """The server answered that the request is wrong or not allowed."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status


class ApiClient:
    """A connection to one API server; use it as an asynchronous context manager."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # True is aiohttp's default for certificates; plain HTTP does not look at it.
        connector = aiohttp.TCPConnector(ssl=self._credentials.tls or True)
        # No proxy and no .netrc from the environment: the server is in the cluster.
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> dict[str, Any]:
        """The object at `path`. Raises `ApiUnavailable`, `ApiRefused`."""
        return await self._request("GET", path, {}, None)

    async def apply(self, path: str, manager: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply, taking over fields of other managers. Raises `ApiUnavailable`, `ApiRefused`."""
        return await self._request("PATCH", path, {"fieldManager": manager, "force": "true"}, body)

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[dict[str, Any], None]:
        """Events of the collection at `path` until the server ends the watch. Raises `ApiUnavailable`,
        `ApiRefused`."""
        # No limit for the whole: the server ends a watch after `WATCH_SECONDS`, and silence ends it here.
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_SECONDS, sock_read=_SILENCE_SECONDS)
        asked = {**query, "watch": "1", "timeoutSeconds": str(WATCH_SECONDS)}
        try:
            async with await self._open("GET", path, asked, None, limits) as answer:
                async for line in _lines(answer.content):
                    yield _decoded(line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnavailable(f"watching {path}: {_brief(error)}") from error

    async def _request(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        limits = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
        try:
            async with await self._open(method, path, query, body, limits) as answer:
                return _decoded(await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # There was no connection: nothing can have reached the server.
            unsent = isinstance(error, aiohttp.ClientConnectorError)
            raise ApiUnavailable(f"{method} {path}: {_brief(error)}", without_effect=unsent) from error

    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """The answer to a request, for the caller to close. Raises `ApiUnavailable` or `ApiRefused` for an
        error."""
        answer = await self._send(method, path, query, body, limits)
        token = self._credentials.token
        # Once more: the token may have been rotated since it was read.
        if answer.status == 401 and token is not None:
            answer.release()
            token.refused()
            answer = await self._send(method, path, query, body, limits)
        if answer.status >= 400:
            async with answer:
                raise await _error(answer)
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the client is used outside of its context")
        headers = {"Accept": "application/json"}
        if self._credentials.token is not None:
            try:
                # Off the loop: the file may lie on a slow disk.
                token = await asyncio.to_thread(self._credentials.token.read)
            except CredentialsError as error:
                raise ApiUnavailable(str(error)) from None
            headers["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            headers["Content-Type"] = "application/apply-patch+yaml"  # JSON is YAML
            data = msgspec.json.encode(body)
        url = f"{self._credentials.server}{path}"
        # A redirect would carry the token to another host.
        return await self._session.request(
            method, url, params=query, data=data, headers=headers, timeout=limits, allow_redirects=False
        )


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length up to a limit; the reader's own lines are shorter than an object may be."""
    rest = bytearray()
    async for chunk in content.iter_any():
        rest += chunk
        *lines, tail = rest.split(b"\n")
        for line in lines:
            if line.strip():
                yield bytes(line)
        rest = bytearray(tail)
        if len(rest) > _MOST_EVENT_BYTES:
            raise aiohttp.ClientPayloadError(f"an event of more than {_MOST_EVENT_BYTES} bytes")


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise aiohttp.ClientPayloadError(f"the answer is no JSON object: {error}") from None


async def _error(answer: aiohttp.ClientResponse) -> ApiUnavailable | ApiRefused:
    """What an answer with an error status means."""
    text = await answer.read()
    try:
        status = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        status = {}
    reason = str(status.get("reason") or answer.reason)
    message = str(status.get("message") or text[:200].decode(errors="replace"))
    # After a 5xx nobody knows whether the server has carried the request out.
    if answer.status >= 500 or answer.status in _MAY_PASS:
        return ApiUnavailable(
            f"{answer.status} {reason}: {message}", without_effect=answer.status in _MAY_PASS
        )
    return ApiRefused(answer.status, reason, message)


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
