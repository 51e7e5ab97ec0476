"""An HTTP POST that is over by a deadline.

Guarantees: looking up the name, connecting, sending and all reads of the answer have the time together,
however slowly a server drips; a request whose time is up has its connection shut, and sends nothing further.
Redirections are not followed.
"""

import contextlib
import functools
import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any


def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> int:
    """The status of the answer. Raises TimeoutError where there is none within `seconds`; OSError (also
    `urllib.error.URLError`) and `http.client.HTTPException`."""
    attempt = _Attempt(urllib.request.Request(url, body, dict(headers), method="POST"), seconds)
    attempt.start()
    attempt.join(seconds)
    if attempt.is_alive():
        attempt.abandon()
        raise TimeoutError
    if attempt.error is not None:
        raise attempt.error
    return attempt.status


class _Attempt(threading.Thread):
    """Sends the request. A thread, for no other can be left alone while it looks up a name; a daemon, for
    nobody waits for it once its time is up."""

    def __init__(self, request: urllib.request.Request, seconds: float) -> None:
        super().__init__(name="webhook-request", daemon=True)
        self.status = 0
        self.error: Exception | None = None
        self._request = request
        self._seconds = seconds
        self._connections: list[http.client.HTTPConnection] = []
        self._abandoned = False

    def run(self) -> None:
        opener = urllib.request.build_opener(_NoRedirect, _Http(self._made), _Https(self._made))
        try:
            with opener.open(self._request, timeout=self._seconds) as answer:
                self.status = answer.status
        except urllib.error.HTTPError as answer:
            self.status = answer.code
            answer.close()
        # `post` raises it, in the thread that waits.
        except Exception as error:  # noqa: BLE001
            late = isinstance(getattr(error, "reason", error), TimeoutError)
            self.error = TimeoutError() if late else error

    def abandon(self) -> None:
        """End it, wherever it is. From another thread."""
        self._abandoned = True
        for connection in self._connections:
            if connection.sock is not None:
                # It may just have been closed.
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _made(self, kind: type[http.client.HTTPConnection], host: str, **given: Any) -> Any:
        """A connection that `abandon` ends."""
        connection: Any = kind(host, **given)
        connection.connect = functools.partial(self._connect, connection, connection.connect)
        self._connections.append(connection)
        return connection

    def _connect(self, connection: http.client.HTTPConnection, connect: Any) -> None:
        connect()
        # There was nothing to shut when it was abandoned.
        if self._abandoned:
            connection.close()
            raise TimeoutError


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The key would go where the answer points."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Watched(urllib.request.AbstractHTTPHandler):
    """Has its connections made by `made`."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self._made = made

    def do_open(self, http_class: Any, req: urllib.request.Request, **given: Any) -> Any:
        return super().do_open(functools.partial(self._made, http_class), req, **given)


class _Http(_Watched, urllib.request.HTTPHandler):
    pass


class _Https(_Watched, urllib.request.HTTPSHandler):
    pass
