"""The webhook against a server on this machine: what it sends, and how it takes refusals."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rljob_runtime.trace.loggers.backlog import Point
from rljob_runtime.trace.loggers.forwarder import LoggerAway
from rljob_runtime.trace.loggers.webhook import WebhookSink

POINTS = [Point(3, 12.5, {"train/loss": 0.5}), Point(4, 13.5, {"train/loss": 0.25})]


class Server(ThreadingHTTPServer):
    """Answers `status`, after `release` where it is to be slow."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.release: threading.Event | None = None


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, dict(self.headers), json.loads(body)))
        if self.server.release is not None:
            self.server.release.wait(10)
            return
        self.send_response(self.server.status)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        if server.release is not None:
            server.release.set()
        server.shutdown()
        thread.join()


def sink(server: Server, token: str | None = None, seconds: float = 10.0) -> WebhookSink:
    return WebhookSink(f"http://127.0.0.1:{server.server_port}/hook/t0p", "math", token, seconds)


def test_points_are_posted_as_json(server: Server) -> None:
    sink(server, "k3y").log(POINTS)
    ((path, headers, body),) = server.seen
    assert path == "/hook/t0p"
    assert headers["Authorization"] == "Bearer k3y" and headers["Content-Type"] == "application/json"
    assert body == {
        "job": "math",
        "points": [
            {"step": 3, "time": 12.5, "values": {"train/loss": 0.5}},
            {"step": 4, "time": 13.5, "values": {"train/loss": 0.25}},
        ],
    }


def test_without_a_key_none_is_sent(server: Server) -> None:
    sink(server).log(POINTS)
    assert "Authorization" not in server.seen[0][1]


@pytest.mark.parametrize("status", [302, 307, 401, 404, 500, 503])
def test_other_answers_are_failures_that_tell_the_host_alone(server: Server, status: int) -> None:
    server.status = status
    with pytest.raises(LoggerAway) as error:
        sink(server, "k3y").log(POINTS)
    assert str(error.value) == f"127.0.0.1:{server.server_port} answered {status}"
    assert len(server.seen) == 1, "a redirection was followed"


def test_a_server_that_does_not_answer_is_a_failure(server: Server) -> None:
    server.release = threading.Event()
    with pytest.raises(LoggerAway, match=r"127\.0\.0\.1:\d+: timed out"):
        sink(server, seconds=0.05).log(POINTS)


def test_no_server_is_a_failure() -> None:
    with Server() as closed:
        port = closed.server_port
    with pytest.raises(LoggerAway, match="refused"):
        WebhookSink(f"http://127.0.0.1:{port}/", "math", None, 10.0).log(POINTS)
