"""Metrics as JSON, by HTTP POST.

A body is {"job": str, "points": [{"step": int, "time": s since the epoch, "values": {name: number}}, ...]}.
An answer of 2xx has taken all points; of others, a redirection too, `answers.py` says what they mean.
"""

import http.client
import urllib.error
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from rljob_runtime.trace.loggers.answers import Answer, answer_of, what_to_do
from rljob_runtime.trace.loggers.backlog import Point
from rljob_runtime.trace.loggers.forwarder import LoggerAway, LoggerDenied, PointsRefused
from rljob_runtime.trace.loggers.timed_post import post


class WebhookSink:
    """Implements `Sink`."""

    def __init__(self, url: str, job: str, token: str | None, timeout_seconds: float) -> None:
        """`token` is sent as a bearer token; None sends none. `timeout_seconds`: for a whole request, until
        the head of the answer is there."""
        self._url = url
        self._job = job
        self._token = token
        self._timeout = timeout_seconds

    def log(self, points: Sequence[Point]) -> None:
        body = {"job": self._job, "points": [point._asdict() for point in points]}
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        # Of the address no more than the host: its path may be known to few.
        host = urlsplit(self._url).netloc
        try:
            status = post(self._url, msgspec.json.encode(body), headers, self._timeout)
        except TimeoutError as error:
            raise LoggerAway(f"{host}: no answer within {self._timeout:g} s") from error
        except urllib.error.URLError as error:
            raise LoggerAway(f"{host}: {error.reason}") from error
        except (http.client.HTTPException, OSError) as error:
            raise LoggerAway(f"{host}: {error or type(error).__name__}") from error
        answered = f"{host} answered {status}"
        match answer_of(status):
            case Answer.DENIED:
                to_do = what_to_do(status, "RLJOB_WEBHOOK_TOKEN", "training.loggers.webhook.url")
                raise LoggerDenied(f"{answered}: {to_do}")
            case Answer.REFUSED:
                raise PointsRefused(answered)
            case Answer.AWAY:
                raise LoggerAway(answered)

    def close(self) -> None:
        pass
