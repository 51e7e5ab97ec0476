"""Where a process gets a job's keys from.

Guarantees: on one machine keys are made at random in the driver and handed to its processes. In a cluster
every pod has the job's key as a file; what travels to other processes is its path and a purpose
(`KeyFile`), and each derives the same keys from them. Keys of different purposes, and of different drivers of
one job, tell nothing about each other.
"""

import base64
import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Literal

import msgspec
import zmq
import zmq.utils.z85

from rljob_runtime.net.auth import ClientKeys, ServerKeys, new_keys

Purpose = Literal["queue", "engines", "weights", "model"]

KEY_BYTES = 32
_DOMAIN = "rljob.dev/v1"


class KeyFileError(RuntimeError):
    """The job's key is not there, or is no key; the message names the file alone."""


class KeyFile(msgspec.Struct, frozen=True, tag=True):
    """Keys that are derived from the job's key, wherever they are needed. Holds no secret."""

    path: str
    """A file on each machine of the job: 32 bytes as hexadecimal text."""
    purpose: str
    """What the keys are for; each purpose has keys of its own."""

    def server(self) -> ServerKeys:
        """Raises `KeyFileError`."""
        return self._derive()[0]

    def client(self) -> ClientKeys:
        """Raises `KeyFileError`."""
        return self._derive()[1]

    def _derive(self) -> tuple[ServerKeys, ClientKeys]:
        key = _read(Path(self.path))
        server, client = (zmq.utils.z85.encode(self._part(key, role)) for role in ("server", "client"))
        server_public, client_public = (zmq.curve_public(secret).decode() for secret in (server, client))
        token = base64.urlsafe_b64encode(self._part(key, "token")).decode()
        return (
            ServerKeys(server_public, server.decode(), (client_public,), token),
            ClientKeys(client_public, client.decode(), token),
        )

    def _part(self, key: bytes, role: str) -> bytes:
        """32 bytes: HKDF-Expand of RFC 5869 with SHA-256, whose first block they are. The key is uniformly
        random, so that nothing is to be extracted. Any 32 bytes are a secret key of Curve25519."""
        info = "\0".join((_DOMAIN, self.purpose, role)).encode()
        return hmac.digest(key, info + b"\x01", hashlib.sha256)


ServerSide = ServerKeys | KeyFile
"""What a process that serves is given."""
ClientSide = ClientKeys | KeyFile
"""What a process that connects is given."""


def server_keys(given: ServerSide) -> ServerKeys:
    """Raises `KeyFileError`."""
    return given.server() if isinstance(given, KeyFile) else given


def client_keys(given: ClientSide) -> ClientKeys:
    """Raises `KeyFileError`."""
    return given.client() if isinstance(given, KeyFile) else given


class Keyring:
    """The keys of one driver's servers and clients."""

    def __init__(self, path: Path | None = None) -> None:
        """`path`: the job's key, None on one machine. Raises `KeyFileError`."""
        self._path = path
        # Public, and different for each driver: what is left of an earlier one is not let in.
        self._driver = secrets.token_hex(8)
        if path is not None:
            _read(path)

    def pair(self, purpose: Purpose) -> tuple[ServerSide, ClientSide]:
        """Keys for the servers of a purpose, and for those who connect to them."""
        if self._path is None:
            return new_keys()
        both = KeyFile(str(self._path), f"{purpose}/{self._driver}")
        return both, both


def _read(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text().strip())
    except OSError as error:
        raise KeyFileError(f"the job's key {path} cannot be read: {error.strerror}") from None
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise KeyFileError(
            f"the job's key {path} is not {KEY_BYTES} bytes as hexadecimal text: is it of the job's Secret?"
        )
    return key
