"""TCP ports of the loopback address that stay one cluster's own, also while nothing listens on them.

A port is taken by a lock on a file, which the kernel frees with its holder. They lie below the kernel's
ephemeral range, so that no outgoing connection gets one while its server is down, and below Kubernetes' node
ports.
"""

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from typing import IO

FIRST, LAST = 20_000, 29_999


class Ports:
    """Ports taken one by one, and given back together."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"rljob-cluster-ports-{os.getuid()}"
        self._locks: list[IO[str]] = []

    def take(self) -> int:
        """A port on which nothing listens and that no other `Ports` has. OSError if none is left."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for port in range(FIRST, LAST + 1):
            if self._lock(port):
                return port
        raise OSError(f"no free port from {FIRST} to {LAST} on 127.0.0.1")

    def give_back(self) -> None:
        """Frees all ports."""
        while self._locks:
            self._locks.pop().close()

    def _lock(self, port: int) -> bool:
        lock = (self._folder / str(port)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                # Servers set this too: a connection that still fades away does not make the port taken.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            return False
        self._locks.append(lock)
        return True
