"""TCP ports of the loopback address that stay one cluster's own, also while nothing listens on them.

A port is taken by binding a socket of the kernel's abstract namespace that is named after it: all processes
of the machine see it, whatever their environment, and the kernel frees it with its holder. Ports lie below
the kernel's ephemeral range, so that no outgoing connection gets one while its server is down, and below
Kubernetes' node ports.
"""

import socket

FIRST, LAST = 20_000, 29_999


class Ports:
    """Ports taken one by one, and given back together."""

    def __init__(self) -> None:
        self._claims: list[socket.socket] = []

    def take(self) -> int:
        """A port on which nothing listens and that no other `Ports` has. OSError if none is left."""
        for port in range(FIRST, LAST + 1):
            if self._claim(port):
                return port
        raise OSError(f"no free port from {FIRST} to {LAST} on 127.0.0.1")

    def give_back(self) -> None:
        """Frees all ports."""
        while self._claims:
            self._claims.pop().close()

    def _claim(self, port: int) -> bool:
        claim = socket.socket(socket.AF_UNIX)
        try:
            # A name that begins with a zero byte is in the abstract namespace: no file can be left behind.
            claim.bind(f"\0rljob-cluster-port-{port}")
            with socket.socket() as probe:
                # Servers set this too: a connection that still fades away does not make the port taken.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            return False
        self._claims.append(claim)
        return True
