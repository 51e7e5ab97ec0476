"""The webhook against a server on this machine: what it sends, and how it takes refusals."""

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.trace.loggers.backlog import Point
from rljob_runtime.trace.loggers.forwarder import Forwarder, LoggerAway, LoggerDenied, PointsRefused
from rljob_runtime.trace.loggers.webhook import WebhookSink
from tests.support.operator.certificates import Authority

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


def test_https_goes_to_a_server_whose_certificate_is_known(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("collect")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    hook = WebhookSink(f"https://127.0.0.1:{server.server_port}/hook", "math", "k3y", 10.0)
    with pytest.raises(LoggerAway, match="CERTIFICATE_VERIFY_FAILED"):
        hook.log(POINTS)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    hook.log(POINTS)
    assert [(path, headers["Authorization"]) for path, headers, _ in server.seen] == [("/hook", "Bearer k3y")]


@pytest.mark.parametrize("status", [302, 307, 429, 500, 503])
def test_other_answers_are_failures_that_tell_the_host_alone(server: Server, status: int) -> None:
    server.status = status
    with pytest.raises(LoggerAway) as error:
        sink(server, "k3y").log(POINTS)
    assert str(error.value) == f"127.0.0.1:{server.server_port} answered {status}"
    assert len(server.seen) == 1, "a redirection was followed"


@pytest.mark.parametrize(
    ("status", "to_do"),
    [(401, "RLJOB_WEBHOOK_TOKEN"), (403, "RLJOB_WEBHOOK_TOKEN"), (404, r"training\.loggers\.webhook\.url")],
)
def test_a_denial_says_what_to_do(server: Server, status: int, to_do: str) -> None:
    server.status = status
    with pytest.raises(LoggerDenied, match=rf"^127\.0\.0\.1:\d+ answered {status}: .*{to_do}") as error:
        sink(server, "k3y").log(POINTS)
    assert "t0p" not in str(error.value)


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
    with pytest.raises(LoggerAway, match=r"127\.0\.0\.1:\d+: no answer within 0\.05 s"):
        sink(server, seconds=0.05).log(POINTS)


_DRIPS = {
    "status": ("http", b"", b"H"),
    "head": ("http", b"HTTP/1.1 204 No Content\r\n", b"X-Slow: 1\r\n"),
    # The beginning of a record of 16 KiB.
    "handshake": ("https", b"\x16\x03\x03\x40\x00", b"\x02"),
}


def requests_end() -> bool:
    """Whether no request goes on."""
    for each in threading.enumerate():
        if each.name == "webhook-request":
            each.join(5.0)
    return all(each.name != "webhook-request" for each in threading.enumerate())


@pytest.mark.parametrize("slow", _DRIPS)
def test_a_server_that_drips_is_a_failure_in_time(slow: str) -> None:
    """Each read of the socket gets something in time, and the answer never ends."""
    scheme, first, drop = _DRIPS[slow]
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(first)
            while not ended.wait(0.05):
                connection.sendall(drop)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        try:
            port, began = listener.getsockname()[1], time.monotonic()
            with pytest.raises(LoggerAway, match=rf"^127\.0\.0\.1:{port}: no answer within 0\.3 s$"):
                WebhookSink(f"{scheme}://127.0.0.1:{port}/", "math", None, 0.3).log(POINTS)
            assert 0.25 <= time.monotonic() - began < 15
            # The connection is shut: the server's drops find nobody.
            thread.join(5.0)
            assert not thread.is_alive()
            assert requests_end()
        finally:
            ended.set()
            thread.join()


def test_a_name_that_is_looked_up_for_too_long_is_a_failure_in_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent then would come beside the next attempt."""
    found, look_up = threading.Event(), socket.getaddrinfo

    def slowly(*given: Any, **more: Any) -> Any:
        assert found.wait(30.0)
        return look_up(*given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    with pytest.raises(LoggerAway, match="no answer within 0\\.1 s"):
        sink(server, seconds=0.1).log(POINTS)
    found.set()
    assert requests_end()
    assert server.seen == []


def test_an_address_that_is_none_is_a_failure() -> None:
    with pytest.raises(UnicodeError):
        WebhookSink(f"http://{'x' * 70}.tools/", "math", None, 10.0).log(POINTS)


def test_no_server_is_a_failure() -> None:
    with Server() as closed:
        port = closed.server_port
    with pytest.raises(LoggerAway, match="refused"):
        WebhookSink(f"http://127.0.0.1:{port}/", "math", None, 10.0).log(POINTS)
