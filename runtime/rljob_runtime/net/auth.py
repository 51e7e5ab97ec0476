"""Who may talk to whom: keys, and ZeroMQ sockets that enforce them.

Guarantees: a tcp socket made here speaks CURVE only, encrypted and authenticated both ways, and a connection
with an unknown key is refused and counted; an ipc socket lies in a folder that only this user can enter, and
its messages carry a token that is compared in constant time. Secrets do not appear in `repr` or in errors.
"""

import errno
import hmac
import os
import secrets
import socket as unix
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

_MAX_IPC_PATH = 107
"""Most bytes in the path of a Unix socket on Linux: 108 with the null byte at its end."""
_PING_MILLISECONDS = 5_000
_SILENCE_MILLISECONDS = 20_000
"""A connection without a sign of life for this long is closed and made anew."""


class AddressError(ValueError):
    """An address that cannot be listened on; the message says why and what to do."""


class ServerKeys(msgspec.Struct, frozen=True, tag=True):
    """What a server knows: its own key pair (Z85), the public keys of its clients, the token for ipc."""

    public: str
    secret: str
    clients: tuple[str, ...]
    token: str

    def __repr__(self) -> str:
        return f"ServerKeys(public={self.public!r}, ...)"


class ClientKeys(msgspec.Struct, frozen=True, tag=True):
    """What a client knows: its key pair (Z85), and the token for ipc."""

    public: str
    secret: str
    token: str

    def __repr__(self) -> str:
        return f"ClientKeys(public={self.public!r}, ...)"


class Endpoint(msgspec.Struct, frozen=True):
    """Where a server listens."""

    address: str
    """tcp://host:port or ipc://path."""
    server_public: str
    """The server's public key (Z85)."""
    lease_seconds: float = 30.0
    """After so long a silence the server takes a client for dead."""


def new_keys() -> tuple[ServerKeys, ClientKeys]:
    """Keys for one job: one pair for its servers, one for its clients, and a token."""
    server_public, server_secret = (key.decode() for key in zmq.curve_keypair())
    client_public, client_secret = (key.decode() for key in zmq.curve_keypair())
    token = secrets.token_urlsafe(32)
    return (
        ServerKeys(server_public, server_secret, (client_public,), token),
        ClientKeys(client_public, client_secret, token),
    )


class Gate:
    """A listening ROUTER socket and who is let in."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, keys: ServerKeys, max_frame_bytes: int
    ) -> None:
        """Listens on `address`; tcp port 0 takes a free one, and a host may be an address of IPv6, with
        brackets around it or without. `context` must not serve another gate. A frame
        above `max_frame_bytes` closes its connection. Raises `AddressError`."""
        self._keys = keys
        self._authenticator: ThreadAuthenticator | None = None
        self.denied = 0
        """Connections refused for their key."""
        self._ipc = address.startswith("ipc://")
        self.socket = context.socket(zmq.ROUTER)
        # Closing does not wait for peers that do not read.
        self.socket.set(zmq.LINGER, 0)
        # Sending over a connection that is gone raises EHOSTUNREACH; without this it is dropped in silence.
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        # What is sent answers a request, so that the requests bound it; nothing is dropped for a full buffer.
        self.socket.set(zmq.SNDHWM, 0)
        self.socket.set(zmq.MAXMSGSIZE, max_frame_bytes)
        # A peer whose machine is gone does not close its connection: only missing answers to pings tell.
        self.socket.set(zmq.HEARTBEAT_IVL, _PING_MILLISECONDS)
        self.socket.set(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MILLISECONDS)
        try:
            # Keys and folder come before the bind, from which on clients can connect.
            if self._ipc:
                _prepare_folder(Path(address.removeprefix("ipc://")))
            else:
                self._require_curve(context)
            self.address = _bind(self.socket, _reached(self.socket, address))
        except BaseException:
            self.close()
            raise

    def _require_curve(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("rljob", self)
        self.socket.set(zmq.CURVE_SERVER, 1)
        self.socket.set(zmq.CURVE_SECRETKEY, self._keys.secret.encode())
        self.socket.set_string(zmq.ZAP_DOMAIN, "rljob")

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether this key (Z85) may connect. The authenticator of pyzmq calls it, and wants this name."""
        allowed = any(hmac.compare_digest(key, client.encode()) for client in self._keys.clients)
        if not allowed:
            self.denied += 1  # the authenticator's thread is the only writer
        return allowed

    def token_fits(self, token: str) -> bool:
        """Whether a message with this token may be served."""
        return not self._ipc or hmac.compare_digest(token.encode(), self._keys.token.encode())

    def close(self) -> None:
        self.socket.close()
        if self._authenticator is not None:
            self._authenticator.stop()


def dial(socket: "zmq.Socket[Any]", endpoint: Endpoint, keys: ClientKeys) -> str:
    """Connect a DEALER socket; returns the token that its messages carry. While there is no connection
    sending waits, so that nothing piles up unseen."""
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.IMMEDIATE, 1)
    # Milliseconds; they double with each attempt, up to the second number.
    socket.set(zmq.RECONNECT_IVL, 100)
    socket.set(zmq.RECONNECT_IVL_MAX, 1_000)
    socket.set(zmq.HEARTBEAT_IVL, _PING_MILLISECONDS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MILLISECONDS)
    if not endpoint.address.startswith("ipc://"):
        socket.set(zmq.CURVE_SERVERKEY, endpoint.server_public.encode())
        socket.set(zmq.CURVE_PUBLICKEY, keys.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, keys.secret.encode())
    socket.connect(_reached(socket, endpoint.address))
    return keys.token if endpoint.address.startswith("ipc://") else ""


def _reached(socket: "zmq.Socket[Any]", address: str) -> str:
    """The address in the form that ZeroMQ takes; one of IPv6 the socket is made ready for. Not every socket:
    one that is would tell of addresses of IPv4 in another form."""
    scheme, _, rest = address.partition("://")
    host, colon, port = rest.rpartition(":")
    if scheme != "tcp" or ":" not in host:
        return address
    socket.set(zmq.IPV6, 1)
    return f"tcp://[{host.strip('[]')}]{colon}{port}"


def _bind(socket: "zmq.Socket[bytes]", address: str) -> str:
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        if error.errno == errno.EADDRINUSE:
            port = urlsplit(address).port
            raise AddressError(
                f"cannot listen on {address}: port {port} is in use. Stop the process that holds it, or use "
                "port 0 to take a free one"
            ) from None
        raise AddressError(f"cannot listen on {address}: {error.strerror}") from None
    return socket.get_string(zmq.LAST_ENDPOINT)


def _prepare_folder(path: Path) -> None:
    """Make the socket's folder, for this user alone, and see that nobody listens there."""
    if len(os.fsencode(path)) > _MAX_IPC_PATH:
        raise AddressError(f"cannot listen on {path}: the path is longer than {_MAX_IPC_PATH} bytes")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.parent.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise AddressError(
            f"cannot listen on {path}: others can enter its folder; make it private: chmod 700 {path.parent}"
        )
    # ZeroMQ's bind takes the path away from a process that listens there, without an error.
    with unix.socket(unix.AF_UNIX, unix.SOCK_STREAM) as probe:
        if path.exists() and probe.connect_ex(str(path)) == 0:
            raise AddressError(f"cannot listen on {path}: another process listens there")
