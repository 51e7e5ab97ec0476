"""Metrics as JSON, by HTTP POST.

A body is {"job": str, "points": [{"step": int, "time": s since the epoch, "values": {name: number}}, ...]}.
An answer of 2xx has taken all points; of others, a redirection too, `answers.py` says what they mean.
"""

import http.client
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from rljob_runtime.trace.loggers.answers import Answer, answer_of
from rljob_runtime.trace.loggers.backlog import Point
from rljob_runtime.trace.loggers.forwarder import LoggerAway, PointsRefused


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The key would go where the answer points."""

    def redirect_request(self, *_: Any) -> None:
        return None


class WebhookSink:
    """Implements `Sink`."""

    def __init__(self, url: str, job: str, token: str | None, timeout_seconds: float) -> None:
        """`token` is sent as a bearer token; None sends none."""
        self._url = url
        self._job = job
        self._token = token
        self._timeout = timeout_seconds
        self._opener = urllib.request.build_opener(_NoRedirect)

    def log(self, points: Sequence[Point]) -> None:
        body = {"job": self._job, "points": [point._asdict() for point in points]}
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._url, msgspec.json.encode(body), headers, method="POST")
        # Of the address no more than the host: its path may be known to few.
        host = urlsplit(self._url).netloc
        try:
            self._opener.open(request, timeout=self._timeout).close()
        except urllib.error.HTTPError as error:
            error.close()
            kind = PointsRefused if answer_of(error.code) is Answer.REFUSED else LoggerAway
            raise kind(f"{host} answered {error.code}") from error
        except urllib.error.URLError as error:
            raise LoggerAway(f"{host}: {error.reason}") from error
        except (http.client.HTTPException, OSError) as error:
            raise LoggerAway(f"{host}: {error or type(error).__name__}") from error

    def close(self) -> None:
        pass
