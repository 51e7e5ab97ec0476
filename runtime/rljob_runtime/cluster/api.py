"""The driver's few requests to the Kubernetes API server, over `rljob_client`.

Guarantees: every request has a deadline, and a watch ends when it has been silent for too long; an error says
whether trying again can help (`ApiUnavailable`) or not (`ApiRefused`); neither tokens nor bodies are logged.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import msgspec

from rljob_client.credentials import Credentials
from rljob_client.errors import ApiError, Unreachable
from rljob_client.resources import RLJOBS
from rljob_client.transport import Call, Transport, answer_of

_REQUEST_SECONDS = 30.0
WATCH_SECONDS = 300
"""The server ends a watch after this time; it is then begun anew."""
_SILENCE_SECONDS = 150.0
"""The server sends a bookmark about every minute: after so long a silence the connection is dead."""
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
        super().__init__(f"{_code(status, reason)}: {message}")
        self.status = status


class ApiClient:
    """A connection to one API server; use it as an asynchronous context manager."""

    def __init__(self, credentials: Credentials) -> None:
        self._transport = Transport(credentials, _Uncounted(), "rljob-driver")

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.__aexit__(kind, error, trace)

    async def get(self, path: str) -> dict[str, Any]:
        """The object at `path`. Raises `ApiUnavailable`, `ApiRefused`."""
        return await self._request(Call("get", RLJOBS, path))

    async def apply(self, path: str, manager: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply, taking over fields of other managers. Raises `ApiUnavailable`, `ApiRefused`."""
        query = (("fieldManager", manager), ("force", "true"))
        # JSON is YAML.
        kind = "application/apply-patch+yaml"
        return await self._request(Call("apply", RLJOBS, path, query, msgspec.json.encode(body), kind))

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[dict[str, Any], None]:
        """Events of the collection at `path` until the server ends the watch. Raises `ApiUnavailable`,
        `ApiRefused`."""
        asked = {**query, "watch": "1", "timeoutSeconds": str(WATCH_SECONDS)}
        call = Call("watch", RLJOBS, path, tuple(asked.items()))
        with _told():
            async with self._transport.stream(call, _SILENCE_SECONDS) as lines:
                async for line in lines:
                    yield answer_of(call, line, dict[str, Any])

    async def _request(self, call: Call) -> dict[str, Any]:
        with _told():
            return answer_of(call, await self._transport.send(call, _REQUEST_SECONDS), dict[str, Any])


class _Uncounted:
    def api_called(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """The driver makes a few requests a minute: nobody counts them."""


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the client as those of this module."""
    try:
        yield
    except ApiError as error:
        raise _meaning(error) from error


def _meaning(error: ApiError) -> ApiUnavailable | ApiRefused:
    refusal = error.refusal
    # Not of the server: there is no connection, or no token can be read now.
    if refusal is None:
        unsent = isinstance(error, Unreachable) and not error.sent
        return ApiUnavailable(str(error), without_effect=unsent)
    # After a 5xx nobody knows whether the server has carried the request out.
    if refusal.code >= 500 or refusal.code in _MAY_PASS:
        return ApiUnavailable(
            f"{_code(refusal.code, refusal.reason)}: {refusal.message}",
            without_effect=refusal.code in _MAY_PASS,
        )
    return ApiRefused(refusal.code, refusal.reason, refusal.message)


def _code(status: int, reason: str) -> str:
    # A proxy on the way gives no reason.
    return f"{status} {reason}" if reason else f"HTTP {status}"
