"""Gives the files of published folders to processes on other machines.

Guarantees: only who has the key is answered; only plain files directly in the folders that `find` names are
readable; a folder's checksums are computed once; memory is bounded by what the readers ask for at a time
(`tcp_fetch` asks for a few chunks). A thread of its own serves, which no message ends: what cannot be
answered is refused, with the reason, and the next one is served.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from rljob_runtime.net.auth import Endpoint, Gate, ServerKeys
from rljob_runtime.weights import tcp_wire as wire
from rljob_runtime.weights.contents import FileEntry, folder_files

log = logging.getLogger(__name__)

_REMEMBERED = 8
"""Folders whose checksums are kept."""


class FolderServer:
    """See the module's guarantees; serves from its construction until `close`."""

    def __init__(self, address: str, keys: ServerKeys, find: Callable[[str], Path]) -> None:
        """Listens on `address` (tcp://HOST:PORT, port 0 takes a free one); `find` gives the folder of a name,
        which need not exist. Raises `AddressError`."""
        self._find = find
        self._described: dict[str, tuple[FileEntry, ...]] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._gate = Gate(self._context, address, keys, wire.MAX_REQUEST_BYTES)
        except BaseException:
            self._context.term()
            raise
        self.endpoint = Endpoint(self._gate.address, keys.public)
        self._router = self._gate.socket
        # A ZeroMQ socket belongs to one thread. `close` is called in another one, and wakes the serving
        # thread through this pair.
        self._stop = self._context.socket(zmq.PAIR)
        self._stop.bind("inproc://stop")
        self._stopped = self._context.socket(zmq.PAIR)
        self._stopped.connect("inproc://stop")
        self._thread = threading.Thread(target=self._serve, name="folder-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close everything. A second call does nothing."""
        if self._context.closed:
            return
        self._stop.send(b"")
        self._thread.join()
        self._stop.close()
        self._stopped.close()
        self._gate.close()
        self._context.term()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._stopped, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stopped in ready:
                return
            identity, *frames = self._router.recv_multipart()
            try:
                request = wire.decode_request(frames)
            except msgspec.DecodeError as error:
                self._send(identity, 0, wire.Refused(f"unreadable message: {error}"))
                continue
            if not self._gate.token_fits(request.token):
                self._send(identity, request.number, wire.Refused("the token does not fit"))
                continue
            try:
                self._answer(identity, request)
            except Exception as error:
                # One reader's question must not take the server from all the others, who would only see
                # that nobody answers them any more.
                log.exception("a request for %s failed", request.folder)
                # A file name may have bytes that are not UTF-8, and MessagePack cannot hold those.
                why = f"the server failed at {request.folder}: {type(error).__name__}: {error}"
                self._send(identity, request.number, wire.Refused(why.encode(errors="replace").decode()))

    def _answer(self, identity: bytes, request: wire.Request) -> None:
        folder = self._find(request.folder)
        try:
            match request.body:
                case wire.Describe(checksums):
                    self._send(identity, request.number, wire.Files(self._describe(folder, checksums)))
                case wire.Read(file, offset):
                    with (folder / file).open("rb") as opened:
                        opened.seek(offset)
                        content = opened.read(wire.CHUNK_BYTES)
                    self._send(identity, request.number, wire.Chunk(), content)
        except OSError as error:
            self._described.pop(folder.name, None)
            why = f"{error.filename}: {error.strerror}"
            if isinstance(error, FileNotFoundError):
                why = f"{folder} was removed: a newer version is published"
            self._send(identity, request.number, wire.Gone(why))

    def _describe(self, folder: Path, checksums: bool) -> tuple[FileEntry, ...]:
        if not checksums:
            return folder_files(folder, checksums=False)
        if folder.name not in self._described:
            self._described[folder.name] = folder_files(folder, checksums=True)
            for old in list(self._described)[:-_REMEMBERED]:
                del self._described[old]
        return self._described[folder.name]

    def _send(
        self,
        identity: bytes,
        number: int,
        body: wire.Files | wire.Chunk | wire.Gone | wire.Refused,
        *content: bytes,
    ) -> None:
        try:
            self._router.send_multipart(
                [identity, wire.encode(wire.Answer(number, body)), *content], zmq.DONTWAIT, copy=False
            )
        except zmq.ZMQError as error:
            # The connection is gone: whoever still wants the answer asks again.
            if error.errno != zmq.EHOSTUNREACH:
                raise
