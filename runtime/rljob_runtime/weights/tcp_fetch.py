"""Fetches a folder from a `tcp_server.FolderServer`.

Guarantees: a fetched folder holds exactly the files that the server described, each of the described size and
checksum, and none above the limit; a few chunks are under way at a time, so that neither side's memory grows
with the folder; a server that is silent for `stall_seconds` ends it (`Unreachable`). Blocking: for a thread.
"""

import hashlib
import itertools
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zmq

from rljob_runtime.net.auth import ClientKeys, Endpoint, dial
from rljob_runtime.weights import tcp_wire as wire
from rljob_runtime.weights.contents import FileEntry
from rljob_runtime.weights.shm import WeightsGone

_UNDER_WAY = 8
"""Chunks asked for and not yet there."""
STALL_SECONDS = 60.0
MAX_FOLDER_BYTES = 4 * 2**40


class Unreachable(WeightsGone):
    """The server does not answer; when its trainer is replaced, another one has the weights."""


class Damaged(RuntimeError):
    """The files that arrived are not those that the server described."""


class FolderClient:
    """A connection to one server; used by one thread. A context manager."""

    def __init__(self, endpoint: Endpoint, keys: ClientKeys, stall_seconds: float = STALL_SECONDS) -> None:
        self._endpoint = endpoint
        self._stall_seconds = stall_seconds
        self._numbers = itertools.count(1)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        # Sending, too, waits while there is no connection (`dial`).
        self._socket.set(zmq.SNDTIMEO, int(stall_seconds * 1000))
        self._socket.set(zmq.RCVTIMEO, int(stall_seconds * 1000))
        self._token = dial(self._socket, endpoint, keys)

    def __enter__(self) -> "FolderClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._context.term()

    def describe(self, folder: str, checksums: bool) -> tuple[FileEntry, ...]:
        """The folder's files. Raises `WeightsGone`, `Unreachable`, `Damaged`."""
        number = self._ask(folder, wire.Describe(checksums))
        answer, _ = self._receive(number)
        if not isinstance(answer, wire.Files):
            raise Damaged(
                f"{self._endpoint.address} answered {type(answer).__name__} for the files of {folder}"
            )
        return answer.files

    def fetch(self, folder: str, into: Path, max_bytes: int = MAX_FOLDER_BYTES) -> None:
        """Write the folder's files into `into`, which exists. Raises `WeightsGone`, `Unreachable`, `Damaged`,
        and `OSError` where they cannot be written."""
        files = self.describe(folder, checksums=True)
        total = sum(entry.size for entry in files)
        if total > max_bytes:
            raise Damaged(f"{folder} has {total:,} bytes; at most {max_bytes:,} are taken")
        for entry in files:
            digest = hashlib.sha256()
            size = 0
            path = into / _plain(entry.name)
            with path.open("wb") as file:
                for chunk in self._chunks(folder, entry):
                    file.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
            if size != entry.size or digest.hexdigest() != entry.sha256:
                raise Damaged(f"{folder}/{entry.name}: {size:,} bytes arrived that do not match the checksum")
            # By size and time alone `model_source` later knows the copy again.
            os.utime(path, (entry.modified, entry.modified))

    def _chunks(self, folder: str, entry: FileEntry) -> Iterator[bytes]:
        """The file's bytes in order, with the next chunks under way."""
        offsets = iter(range(0, entry.size, wire.CHUNK_BYTES))
        asked: deque[int] = deque()
        while True:
            for offset in itertools.islice(offsets, _UNDER_WAY - len(asked)):
                asked.append(self._ask(folder, wire.Read(entry.name, offset)))
            if not asked:
                return
            # One connection, one serving thread: answers come in the order of the questions.
            answer, content = self._receive(asked.popleft())
            if not isinstance(answer, wire.Chunk) or not 0 < len(content) <= wire.CHUNK_BYTES:
                raise Damaged(f"{folder}/{entry.name}: no chunk came from {self._endpoint.address}")
            yield content

    def _ask(self, folder: str, body: wire.Describe | wire.Read) -> int:
        number = next(self._numbers)
        try:
            self._socket.send(wire.encode(wire.Request(self._token, number, folder, body)))
        except zmq.Again:
            raise self._unreachable() from None
        return number

    def _receive(self, number: int) -> tuple[wire.Files | wire.Chunk, bytes]:
        try:
            answer, content = wire.decode_answer(self._socket.recv_multipart())
        except zmq.Again:
            raise self._unreachable() from None
        except msgspec.DecodeError as error:
            raise Damaged(f"{self._endpoint.address} sent what cannot be read: {error}") from None
        match answer.body:
            case wire.Gone(why):
                raise WeightsGone(f"{why}, at {self._endpoint.address}")
            case wire.Refused(why):
                raise Damaged(f"{self._endpoint.address} refused: {why}")
        if answer.number != number:
            raise Damaged(f"{self._endpoint.address} answered request {answer.number}, not {number}")
        return answer.body, content

    def _unreachable(self) -> Unreachable:
        return Unreachable(f"{self._endpoint.address} did not answer for {self._stall_seconds:g} s")


def _plain(name: str) -> str:
    """`name`, if it is a file's in a folder and no path."""
    if not name or name != Path(name).name or name.startswith("."):
        raise Damaged(f"a file is called {name!r}")
    return name
