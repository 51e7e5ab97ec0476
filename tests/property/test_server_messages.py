"""Whatever a client sends, a server answers it, and goes on serving everybody else."""

import contextlib

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_runtime.net.auth import dial
from rljob_runtime.weights import tcp_wire
from rljob_runtime.weights.tcp_server import FolderServer
from tests.support.depth import examples
from tests.support.runtime.queue_site import CLIENT_KEYS, SERVER_KEYS, SOON, Site, groups

SETTINGS = settings(
    max_examples=examples(150),
    deadline=None,
    # One server for all examples: it has to survive every one of them.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

ODD_NUMBERS = (-(2**63), -1, 0, 1, 2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
NUMBERS = st.sampled_from(ODD_NUMBERS) | st.integers(0, 9)
TEXTS = st.sampled_from(["", "x", "v1", "model.safetensors", "..", "a/b", "v1\n", "\0", "é" * 200]) | st.text(
    max_size=8
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | TEXTS | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "file", "offset", "token"]), inner)
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def folder_server(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    (root / "v1").mkdir()
    (root / "v1" / "model.safetensors").write_bytes(b"weights")
    server = FolderServer("tcp://127.0.0.1:0", SERVER_KEYS, lambda name: root / name)
    yield server
    server.close()


@pytest.fixture(scope="module")
def queue_site(tmp_path_factory):
    site = Site(f"ipc://{tmp_path_factory.mktemp('queue')}/private/queue")
    yield site
    site.stop()


@pytest.fixture(scope="module")
def sockets():
    """A connection to each endpoint, made once."""
    with zmq.Context() as context:
        made = {}

        def connect(endpoint):
            if endpoint.address not in made:
                socket = made[endpoint.address] = context.socket(zmq.DEALER)
                socket.set(zmq.RCVTIMEO, int(SOON * 1000))
                socket.set(zmq.SNDTIMEO, int(SOON * 1000))
                dial(socket, endpoint, CLIENT_KEYS)
            return made[endpoint.address]

        yield connect
        for socket in made.values():
            socket.close(linger=0)


# The folder server

FOLDERS, FILES = st.just("v1") | TEXTS, st.just("model.safetensors") | TEXTS
FOLDER_BODIES = st.one_of(
    st.fixed_dictionaries({"type": st.just("describe"), "checksums": st.booleans() | VALUES}),
    st.fixed_dictionaries({"type": st.just("read"), "file": FILES, "offset": NUMBERS}),
    VALUES,
)
FOLDER_REQUESTS = st.fixed_dictionaries(
    {"token": TEXTS, "number": NUMBERS, "folder": FOLDERS, "body": FOLDER_BODIES}
)


def folder_is_served(socket):
    """An honest request, sent after another one, is answered; what was answered before it."""
    honest = tcp_wire.Request("", 7_777_777, "v1", tcp_wire.Read("model.safetensors", 0))
    socket.send(tcp_wire.encode(honest))
    before = []
    while True:
        answer, content = tcp_wire.decode_answer(socket.recv_multipart())
        if answer.number == 7_777_777:
            assert content == b"weights"
            return before
        before.append(answer)


@SETTINGS
@given(frames=st.lists(FOLDER_REQUESTS.map(msgspec.msgpack.encode) | st.binary(max_size=60), max_size=2))
def test_no_message_ends_the_folder_server(folder_server, sockets, frames):
    socket = sockets(folder_server.endpoint)
    socket.send_multipart(frames or [b""])
    assert len(folder_is_served(socket)) == 1, "it is answered, once"


@pytest.mark.parametrize("offset", [2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_an_offset_that_no_file_has_is_refused(folder_server, sockets, offset):
    request = {
        "token": "",
        "number": 1,
        "folder": "v1",
        "body": {"type": "read", "file": "x", "offset": offset},
    }
    socket = sockets(folder_server.endpoint)
    socket.send(msgspec.msgpack.encode(request))
    (answer,) = folder_is_served(socket)
    assert isinstance(answer.body, tcp_wire.Refused)


@pytest.mark.parametrize("field", ["token", "folder", "file"])
def test_a_text_that_is_not_utf_8_is_refused(folder_server, sockets, field):
    request = {
        "token": "QQ",
        "number": 1,
        "folder": "QQ",
        "body": {"type": "read", "file": "QQ", "offset": 0},
    }
    (request["body"] if field == "file" else request)[field] = "XX"
    socket = sockets(folder_server.endpoint)
    socket.send(msgspec.msgpack.encode(request).replace(b"XX", b"\xff\xfe"))
    (answer,) = folder_is_served(socket)
    assert isinstance(answer.body, tcp_wire.Refused)


def test_a_file_whose_name_is_no_text_is_left_out(tmp_path):
    """It cannot be told, and nobody reads it by its name: the folder's other files are served, and others."""
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / b"\xff.bin".decode(errors="surrogateescape")).touch()
    (tmp_path / "odd" / "config.json").write_bytes(b"{}")
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "model.safetensors").write_bytes(b"weights")
    server = FolderServer("tcp://127.0.0.1:0", SERVER_KEYS, lambda name: tmp_path / name)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.RCVTIMEO, int(SOON * 1000))
        dial(socket, server.endpoint, CLIENT_KEYS)
        socket.send(tcp_wire.encode(tcp_wire.Request("", 1, "odd", tcp_wire.Describe(checksums=False))))
        (answer,) = folder_is_served(socket)
        assert isinstance(answer.body, tcp_wire.Files)
        assert [each.name for each in answer.body.files] == ["config.json"]
    server.close()


# The queue server

UIDS = st.lists(NUMBERS, max_size=4)
QUEUE_BODIES = st.one_of(
    st.tuples(st.just("put"), UIDS, st.lists(NUMBERS, max_size=4), st.lists(NUMBERS, max_size=4)),
    st.tuples(st.just("get"), UIDS),
    st.tuples(st.just("ack"), UIDS, NUMBERS),
    # Not those that rightly change what is done for everybody: `reset` has its own test.
    st.tuples(st.just("heartbeat"), NUMBERS, UIDS, UIDS),
    st.tuples(st.just("stats")),
    st.tuples(st.just("bye")),
    st.lists(VALUES, max_size=4),
    VALUES,
)
TOKENS = st.just(CLIENT_KEYS.token) | TEXTS
QUEUE_REQUESTS = st.tuples(st.sampled_from(["mallory", "x"]) | TEXTS, TOKENS, NUMBERS, NUMBERS, QUEUE_BODIES)


def queue_is_served(site):
    with site.blocking("honest") as client:
        client.put(groups(90_001), SOON)
        client.stats(SOON)
    assert site.server.failure is None


@SETTINGS
@given(
    headers=st.lists(QUEUE_REQUESTS, min_size=1, max_size=3),
    payload=st.lists(st.binary(max_size=6), max_size=2),
)
def test_no_message_ends_the_queue_server(queue_site, sockets, headers, payload):
    socket = sockets(queue_site.endpoint)
    for header in headers:
        socket.send_multipart([msgspec.msgpack.encode(header), *payload])
    with contextlib.suppress(zmq.Again):
        while True:
            socket.recv_multipart(zmq.DONTWAIT)
    queue_is_served(queue_site)


@SETTINGS
@given(term=NUMBERS, watermark=NUMBERS, ahead=UIDS)
def test_no_reset_ends_the_queue_server(sockets, make_queue, term, watermark, ahead):
    site = make_queue()
    header = ["mallory", CLIENT_KEYS.token, 1, 1, ["reset", term, watermark, ahead]]
    sockets(site.endpoint).send_multipart([msgspec.msgpack.encode(header)])
    with site.blocking("honest") as client:
        client.stats(SOON)
    assert site.server.failure is None


@pytest.fixture(scope="module")
def make_queue(tmp_path_factory):
    """One queue for all examples."""
    site = Site(f"ipc://{tmp_path_factory.mktemp('reset')}/private/queue")
    yield lambda: site
    site.stop()


@given(frames=st.lists(st.binary(max_size=60), max_size=3))
def test_no_bytes_end_the_queue_server(queue_site, sockets, frames):
    sockets(queue_site.endpoint).send_multipart(frames or [b""])
    queue_is_served(queue_site)
