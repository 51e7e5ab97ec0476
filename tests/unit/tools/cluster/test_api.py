"""The tests' own client of the API server, with one that is busy, slow or late."""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.cluster.api import Api, ApiError

PODS = "/api/v1/namespaces/a/pods"
BUSY = (429, {"reason": "TooManyRequests", "message": "storage is (re)initializing"})
AWAY = (503, {"reason": "ServiceUnavailable", "message": "not yet"})
BROKEN = (500, {"reason": "InternalError", "message": "broken"})

Answer = tuple[int, dict[str, Any]]


def pods(*names: str) -> Answer:
    items = [{"metadata": {"name": name, "uid": name}} for name in names]
    return 200, {"metadata": {"resourceVersion": "7"}, "items": items}


def added(name: str) -> Answer:
    return 200, {"type": "ADDED", "object": {"metadata": {"name": name, "uid": name}}}


class Plain(http.client.HTTPConnection):
    """A connection without TLS."""

    def __init__(self, host: str, *, timeout: float, context: object) -> None:
        super().__init__(host, timeout=timeout)


@contextmanager
def answering(lists: list[Answer], watches: list[Answer]) -> Iterator[tuple[Api, list[str]]]:
    """A client of a server that gives these answers, the last one for ever; and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            script = watches if "watch=1" in self.path else lists
            code, document = script.pop(0) if len(script) > 1 else script[0]
            body = json.dumps(document).encode() + b"\n"
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        api = Api(f"http://127.0.0.1:{server.server_address[1]}", "token", Path("/nowhere"))
        api._tls = ssl.create_default_context()
        try:
            yield api, asked
        finally:
            server.shutdown()


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.client, "HTTPSConnection", Plain)


def names(found: list[dict[str, Any]]) -> list[str]:
    return [each["metadata"]["name"] for each in found]


def has(*wanted: str) -> Callable[[list[dict[str, Any]]], bool]:
    return lambda found: names(found) == list(wanted)


def test_a_busy_server_is_asked_again() -> None:
    with answering([BUSY, BUSY, pods("a")], [BUSY]) as (api, asked):
        assert names(api.items(PODS)) == ["a"]
    assert asked == [PODS] * 3


def test_a_server_that_stays_busy_is_told_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    # Each sleep is ten seconds of this clock.
    clock = SimpleNamespace(monotonic=lambda: 10.0 * len(slept), sleep=slept.append)
    monkeypatch.setattr("tools.cluster.api.time", clock)
    with answering([BUSY], [BUSY]) as (api, asked):
        with pytest.raises(ApiError, match="429 TooManyRequests"):
            api.request("GET", PODS, seconds=30)
        assert len(asked) == 5


@pytest.mark.parametrize("answer", [AWAY, BROKEN])
def test_what_may_have_been_done_is_not_asked_again(answer: Answer) -> None:
    with answering([answer], [BUSY]) as (api, asked):
        with pytest.raises(ApiError):
            api.request("GET", PODS)
        assert asked == [PODS]


@pytest.mark.parametrize("answer", [BUSY, AWAY])
@pytest.mark.parametrize("where", ["list", "watch"])
def test_a_wait_outlasts_a_server_that_has_just_started(answer: Answer, where: str) -> None:
    lists = [answer, pods()] if where == "list" else [pods()]
    watches = [answer, added("a")] if where == "watch" else [added("a")]
    with answering(lists, watches) as (api, _):
        assert names(api.wait(PODS, has("a"), "a", seconds=30)) == ["a"]


def test_a_wait_tells_at_once_what_does_not_pass() -> None:
    with answering([BROKEN], [BUSY]) as (api, _), pytest.raises(ApiError, match="broken"):
        api.wait(PODS, has("a"), "a", seconds=30)


def test_a_wait_looks_once_however_late_it_is() -> None:
    with answering([pods("a")], [BUSY]) as (api, asked):
        assert names(api.wait(PODS, has("a"), "a", seconds=-1.0)) == ["a"]
        with pytest.raises(TimeoutError, match=r"still not: b\. .* has a \(no phase\)"):
            api.wait(PODS, has("b"), "b", seconds=-1.0)
    assert asked == [PODS] * 2


def test_a_wait_for_what_never_comes_ends() -> None:
    began = time.monotonic()
    with (
        answering([pods()], [added("a")]) as (api, _),
        pytest.raises(TimeoutError, match=r"after 0\.3 s still not: b\. .* has"),
    ):
        api.wait(PODS, has("b"), "b", seconds=0.3)
    assert time.monotonic() - began >= 0.3
