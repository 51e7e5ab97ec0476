"""TLS and connections as the `kubernetes` package makes them.

Guarantees, beyond the package's:
- all connections of one `Connections` are made with one TLS, and as many as are wanted at a time;
- no redirect is followed: it would show a certificate, and the request, to another host;
- a connection that is closed is reset: what it still holds is not delivered;
- nothing is looked for in the environment or in ~/.netrc, and no cookie is kept.
"""

import copy
import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any, Self
from weakref import WeakSet

import aiohttp
import msgspec
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from multidict import CIMultiDict
from yarl import URL

_IDLE_SECONDS = 15.0
"""After so long without a request a connection is closed."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""`struct linger`: on, 0 seconds. Closing the socket then sends a reset."""


class Connections(RESTClientObject):  # type: ignore[misc]
    """Those of one event loop to one server, once they are `opened`."""

    def opened(self, tls: ssl.SSLContext | None, headers: Mapping[str, str]) -> Self:
        """The same with this TLS, and these headers of each request."""
        # Not anew: the package would read all authorities of the system, for longer than most requests take.
        made = copy.copy(self)
        made.ssl_context = tls or False
        made._headers = headers
        made._asked = 0
        made._answers = WeakSet()
        return made

    @property
    def in_use(self) -> bool:
        """A request is under way, or an answer is not read to its end."""
        return self._asked > 0 or not all(answer.closed for answer in self._answers)

    async def ask(
        self,
        method: str,
        url: URL,
        headers: CIMultiDict[str],
        body: bytes | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """The beginning of the answer. `body`: JSON."""
        # The package encodes JSON itself, and takes nothing that is encoded.
        content = None if body is None else msgspec.json.decode(body)
        self._asked += 1
        try:
            answer = (await self.request(method, url, headers, content, _request_timeout=limits)).response
        except _Redirected as redirected:
            (answer,) = redirected.args
        finally:
            self._asked -= 1
        self._answers.add(answer)
        return answer  # type: ignore[no-any-return]

    def _create_pool_manager(self) -> aiohttp.ClientSession:
        # Without `trust_env`: it would be looked at before each request, at three times the CPU time.
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                # No limit of connections: a lease must be renewed however many requests are under way.
                limit=0,
                ssl=self.ssl_context,
                socket_factory=_resetting_socket,
                keepalive_timeout=_IDLE_SECONDS,
            ),
            # The cookie of a load balancer would keep all requests at one API server.
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            middlewares=(_not_redirected,),
        )


def new_tls(configuration: Configuration) -> ssl.SSLContext:
    """TLS by the configuration's files. Raises `ssl.SSLError` and `OSError`."""
    return RESTClientObject(configuration).ssl_context  # type: ignore[no-any-return]


class _Redirected(Exception):
    """The answer, its argument, is a redirect."""


async def _not_redirected(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    response = await handler(request)
    if 300 <= response.status < 400:
        raise _Redirected(response)
    return response


def _resetting_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that is reset when it is closed, instead of delivering what it still holds in its own time."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    return made
