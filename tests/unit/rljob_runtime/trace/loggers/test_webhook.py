"""The webhook against a server on this machine: what it sends, and how it takes refusals."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rljob_runtime.trace.loggers.backlog import Point
from rljob_runtime.trace.loggers.forwarder import Forwarder, LoggerAway, PointsRefused
from rljob_runtime.trace.loggers.webhook import WebhookSink

POINTS = [Point(3, 12.5, {"train/loss": 0.5}), Point(4, 13.5, {"train/loss": 0.25})]


class Server(ThreadingHTTPServer):
    """Answers `status`, after `release` where it is to be slow; 400 to a body with the curve `refuses`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.refuses = ""
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
        refused = any(self.server.refuses in point["values"] for point in json.loads(body)["points"])
        self.send_response(400 if refused else self.server.status)
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


@pytest.mark.parametrize("status", [302, 307, 401, 404, 429, 500, 503])
def test_other_answers_are_failures_that_tell_the_host_alone(server: Server, status: int) -> None:
    server.status = status
    with pytest.raises(LoggerAway) as error:
        sink(server, "k3y").log(POINTS)
    assert str(error.value) == f"127.0.0.1:{server.server_port} answered {status}"
    assert len(server.seen) == 1, "a redirection was followed"


@pytest.mark.parametrize("status", [400, 413, 422])
def test_refusals_tell_the_host_alone(server: Server, status: int) -> None:
    server.status = status
    with pytest.raises(PointsRefused) as error:
        sink(server).log(POINTS)
    assert str(error.value) == f"127.0.0.1:{server.server_port} answered {status}"


def test_a_server_that_refuses_evaluations_gets_every_step(server: Server) -> None:
    server.refuses = "evaluation/gsm8k/pass@1"
    logger = Forwarder("webhook", lambda: sink(server), 100)
    for step in range(10):
        if step % 5 == 0:
            logger.send(step, 0.0, {"evaluation/gsm8k/pass@1": 0.5})
        logger.send(step + 1, 0.0, {"train/loss": 1.0})
    logger.close(30.0)
    bodies = [body["points"] for _, _, body in server.seen]
    taken = [
        point for body in bodies for point in body if not any(server.refuses in p["values"] for p in body)
    ]
    assert [point["step"] for point in taken] == list(range(1, 11))
    assert (logger.lost, logger.refused) == (2, 2)
    assert logger.refusal == f"127.0.0.1:{server.server_port} answered 400"


def test_a_server_that_does_not_answer_is_a_failure(server: Server) -> None:
    server.release = threading.Event()
    with pytest.raises(LoggerAway, match=r"127\.0\.0\.1:\d+: timed out"):
        sink(server, seconds=0.05).log(POINTS)


def test_no_server_is_a_failure() -> None:
    with Server() as closed:
        port = closed.server_port
    with pytest.raises(LoggerAway, match="refused"):
        WebhookSink(f"http://127.0.0.1:{port}/", "math", None, 10.0).log(POINTS)
