"""Folders that are fetched over the network: whole or not at all, and only by who may."""

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from rljob_runtime.net.auth import ClientKeys, Endpoint, dial, new_keys
from rljob_runtime.weights import tcp_wire as wire
from rljob_runtime.weights.contents import FileEntry, folder_files
from rljob_runtime.weights.model_source import ModelSource, local_copy
from rljob_runtime.weights.shm import WeightsGone
from rljob_runtime.weights.tcp_fetch import Damaged, FolderClient, Unreachable
from rljob_runtime.weights.tcp_server import FolderServer

SERVER_KEYS, CLIENT_KEYS = new_keys()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Holds the folder v1, with an empty file, one below a chunk, one of several chunks, and a hidden one."""
    folder = tmp_path / "root" / "v1"
    folder.mkdir(parents=True)
    (folder / "empty").touch()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(os.urandom(20 * wire.CHUNK_BYTES + 17))
    (folder / ".lock").touch()
    (tmp_path / "root" / "secret").write_text("not to be read")
    return tmp_path / "root"


@pytest.fixture
def server(root: Path) -> Iterator[FolderServer]:
    server = FolderServer("tcp://127.0.0.1:0", SERVER_KEYS, lambda name: root / name)
    yield server
    server.close()


def client(server: FolderServer, keys: ClientKeys = CLIENT_KEYS, seconds: float = 20.0) -> FolderClient:
    return FolderClient(server.endpoint, keys, seconds)


def test_a_folder_arrives_whole(server: FolderServer, root: Path, tmp_path: Path) -> None:
    into = tmp_path / "copy"
    into.mkdir()
    with client(server) as one:
        one.fetch("v1", into)
    assert folder_files(into, checksums=True) == folder_files(root / "v1", checksums=True)
    assert [path.name for path in sorted(into.iterdir())] == ["config.json", "empty", "model.safetensors"]


@pytest.mark.parametrize("name", ["read me (1).md", "+x", "模型.txt", "a:b", "-", "line\nend", "x" * 255])
def test_files_beside_a_model_may_have_any_names(
    server: FolderServer, root: Path, tmp_path: Path, name: str
) -> None:
    (root / "v1" / name).write_text("x")
    (root / "v1" / os.fsdecode(b"no text \xff")).write_text("left out")
    into = tmp_path / "copy"
    into.mkdir()
    with client(server) as one:
        one.fetch("v1", into)
    assert folder_files(into, checksums=True) == folder_files(root / "v1", checksums=True)
    assert (into / name).read_text() == "x"
    assert len(list(into.iterdir())) == 4


@pytest.mark.parametrize("name", ["", ".hidden", "..", "../secret", "/etc/passwd", "a/b", "a\0", "x" * 256])
def test_no_request_leads_out_of_a_folder(name: str) -> None:
    asked = wire.encode(wire.Request("", 1, "v1", wire.Read(name, 0)))
    with pytest.raises(msgspec.DecodeError):
        wire.decode_request([asked])


def test_several_fetch_at_a_time(server: FolderServer, root: Path, tmp_path: Path) -> None:
    def fetch(into: Path) -> None:
        with client(server) as one:
            one.fetch("v1", into)

    copies = [tmp_path / f"copy{index}" for index in range(3)]
    threads = [threading.Thread(target=fetch, args=[copy]) for copy in copies]
    for copy, thread in zip(copies, threads, strict=True):
        copy.mkdir()
        thread.start()
    for thread in threads:
        thread.join()
    expected = folder_files(root / "v1", checksums=True)
    assert all(folder_files(copy, checksums=True) == expected for copy in copies)


def test_what_was_removed_is_gone(server: FolderServer, tmp_path: Path) -> None:
    with client(server) as one, pytest.raises(WeightsGone, match="v2 was removed"):
        one.fetch("v2", tmp_path)


def test_a_folder_above_the_limit_is_not_taken(server: FolderServer, tmp_path: Path) -> None:
    with client(server) as one, pytest.raises(Damaged, match="at most 1,000 are taken"):
        one.fetch("v1", tmp_path, max_bytes=1000)


def test_a_changed_file_is_noticed(server: FolderServer, root: Path, tmp_path: Path) -> None:
    with client(server) as one:
        one.describe("v1", checksums=True)
        file = root / "v1" / "model.safetensors"
        file.write_bytes(bytes(file.stat().st_size))
        with pytest.raises(Damaged, match="do not match the checksum"):
            one.fetch("v1", tmp_path)


def test_a_stranger_gets_nothing(server: FolderServer, tmp_path: Path) -> None:
    _, strange = new_keys()
    with client(server, strange, seconds=1.0) as one, pytest.raises(Unreachable, match="did not answer"):
        one.fetch("v1", tmp_path)
    with client(server) as one:
        assert one.describe("v1", checksums=False)


def test_a_server_that_is_gone_is_unreachable(server: FolderServer, tmp_path: Path) -> None:
    server.close()
    with client(server, seconds=0.5) as one, pytest.raises(Unreachable, match="did not answer for"):
        one.fetch("v1", tmp_path)


@pytest.mark.parametrize(
    ("folder", "file"),
    [("..", "secret"), ("v1", "../secret"), (".", "secret"), ("v1/..", "secret"), ("v1", ".lock"), ("", "x")],
)
def test_nothing_else_is_readable(server: FolderServer, folder: str, file: str) -> None:
    request = wire.Request("", 1, folder, wire.Read(file, 0))
    answer, _ = wire.decode_answer(_ask(server.endpoint, wire.encode(request)))
    assert isinstance(answer.body, wire.Refused)


def test_garbage_is_refused_and_does_no_harm(server: FolderServer) -> None:
    for frames in ([b"\xc1"], [b""], [os.urandom(100)], [b"a", b"b"]):
        answer, _ = wire.decode_answer(_ask(server.endpoint, *frames))
        assert isinstance(answer.body, wire.Refused)
    with client(server) as one:
        assert one.describe("v1", checksums=False)


@pytest.mark.parametrize("name", ["../evil", "/evil", ".hidden", "a/b", ""])
def test_a_server_cannot_choose_where_files_are_written(tmp_path: Path, name: str) -> None:
    content = b"x"
    entry = FileEntry(name, len(content), 0, hashlib.sha256(content).hexdigest())
    into = tmp_path / "into"
    into.mkdir()
    with (
        _lying_server(wire.Files((entry,))) as endpoint,
        FolderClient(endpoint, CLIENT_KEYS, 10.0) as one,
        pytest.raises(Damaged),
    ):
        one.fetch("v1", into)
    assert list(tmp_path.rglob("*")) == [into]


@pytest.mark.parametrize(
    "frames",
    [
        [b"garbage"],
        [wire.encode(wire.Answer(99, wire.Files(())))],
        [wire.encode(wire.Answer(1, wire.Chunk())), b"x"],
        [wire.encode(wire.Answer(1, wire.Chunk()))],
    ],
)
def test_answers_that_do_not_fit_are_damage(tmp_path: Path, frames: list[bytes]) -> None:
    with (
        _lying_server(frames) as endpoint,
        FolderClient(endpoint, CLIENT_KEYS, 10.0) as one,
        pytest.raises(Damaged),
    ):
        one.fetch("v1", tmp_path)


def source(server: FolderServer, folder: Path, copy: str) -> ModelSource:
    return ModelSource(str(folder), copy, server.endpoint, CLIENT_KEYS)


@pytest.fixture
def model_server(root: Path) -> Iterator[FolderServer]:
    server = FolderServer("tcp://127.0.0.1:0", SERVER_KEYS, lambda _: root / "v1")
    yield server
    server.close()


def test_shared_storage_is_used_as_it_is(model_server: FolderServer, root: Path) -> None:
    assert local_copy(source(model_server, root / "v1", "unused")) == root / "v1"


def test_without_shared_storage_the_model_is_copied_once(
    model_server: FolderServer, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    wanted = source(model_server, tmp_path / "not there", "copy")
    copy = local_copy(wanted)
    assert copy == tmp_path / "copy"
    assert folder_files(copy, checksums=True) == folder_files(root / "v1", checksums=True)
    node = copy.stat().st_ino
    assert local_copy(wanted).stat().st_ino == node


def test_a_stale_copy_is_replaced(
    model_server: FolderServer, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the same names and sizes, from an earlier job."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    wanted = source(model_server, tmp_path / "not there", "copy")
    stale = local_copy(wanted) / "model.safetensors"
    stale.write_bytes(bytes(stale.stat().st_size))
    os.utime(stale, (1, 1))
    assert folder_files(local_copy(wanted), checksums=True) == folder_files(root / "v1", checksums=True)


def _ask(endpoint: Endpoint, *frames: bytes) -> list[bytes]:
    """The answer to a message that may be anything."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.RCVTIMEO, 10_000)
        dial(socket, endpoint, CLIENT_KEYS)
        socket.send_multipart(frames)
        return socket.recv_multipart()


class _lying_server:
    """A server with the right keys that answers the first message with what it is given."""

    def __init__(self, answer: wire.Files | list[bytes]) -> None:
        self._frames = answer if isinstance(answer, list) else [wire.encode(wire.Answer(1, answer))]

    def __enter__(self) -> Endpoint:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set(zmq.CURVE_SERVER, 1)
        self._socket.set(zmq.CURVE_SECRETKEY, SERVER_KEYS.secret.encode())
        self._socket.bind("tcp://127.0.0.1:0")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return Endpoint(self._socket.get_string(zmq.LAST_ENDPOINT), SERVER_KEYS.public)

    def _serve(self) -> None:
        identity, *_ = self._socket.recv_multipart()
        self._socket.send_multipart([identity, *self._frames])

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._socket.close(linger=0)
        self._context.term()


def test_the_wire_refuses_more_files_than_a_folder_may_have() -> None:
    files = tuple(FileEntry(f"f{index}", 0, 0) for index in range(wire.MAX_FILES + 1))
    frame = wire.encode(wire.Answer(1, wire.Files(files)))
    with pytest.raises(msgspec.DecodeError):
        wire.decode_answer([frame])
