"""Whether a request may be sent to a server that fails.

Guarantees: after `FAILURES` failures in a row one request at a time is sent, a probe, and the others wait for
what becomes of it; any good answer lets all be sent again; a server that has given none for longer than its
patience, over `PROBES` probes, is lost. Pure: the time is passed in.
"""

from dataclasses import dataclass
from typing import Literal

FAILURES = 8
"""More than the tries of one request: one that fails alone says nothing of the server."""
PROBES = 3
"""Fewest failed probes by which a server is lost: long may pass in which there is nothing to ask."""
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each probe; the last also before those that follow."""
LEAST_PATIENCE = 600.0
"""Seconds: as long as a server with a large model may take to start again."""

Change = Literal["opened", "lost"]


@dataclass(frozen=True, eq=False)
class Permit:
    """A request may be sent."""

    probe: bool = False
    """The others wait for what becomes of it, which is to be told in any case."""
    after: float = 0.0
    """In so many seconds."""


def patience_of(timeout_seconds: float) -> float:
    """Seconds that a server may give no answer, from the time limit of a request."""
    return max(LEAST_PATIENCE, 5 * timeout_seconds)


class Circuit:
    """What is known of one server. `now` is in seconds of any clock that does not go back."""

    def __init__(self, patience: float) -> None:
        """`patience`: see `patience_of`."""
        self._patience = patience
        self._in_a_row = 0
        self._opened: float | None = None
        """None while it is closed: all requests are sent."""
        self._probe: Permit | None = None
        self._probes = 0
        """That have failed."""

    @property
    def state(self) -> Literal["closed", "open", "probing"]:
        """Whether all requests are sent, none at the moment, or one."""
        if self._opened is None:
            return "closed"
        return "open" if self._probe is None else "probing"

    def ask(self) -> Permit | None:
        """Whether the next request may be sent; None: not before something is told."""
        if self._opened is None:
            return Permit()
        if self._probe is not None:
            return None
        self._probe = Permit(True, PAUSES[min(self._probes, len(PAUSES) - 1)])
        return self._probe

    def answered(self, now: float) -> float | None:
        """The server has answered. For how many seconds it had been open, where that closes it."""
        opened, self._opened = self._opened, None
        self._in_a_row, self._probe, self._probes = 0, None, 0
        return None if opened is None else now - opened

    def failed(self, permit: Permit, now: float) -> Change | None:
        """The request with this permit failed; what that changes."""
        if self._opened is None:
            self._in_a_row += 1
            if self._in_a_row < FAILURES:
                return None
            self._opened = now
            return "opened"
        if permit is not self._probe:
            # It was sent before.
            return None
        self._probe = None
        self._probes += 1
        return "lost" if self._probes >= PROBES and now - self._opened >= self._patience else None

    def withdrawn(self, permit: Permit) -> None:
        """The request with this permit was cancelled."""
        if permit is self._probe:
            self._probe = None
