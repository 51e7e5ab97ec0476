"""Logins, shared by all requests of a process that speak as one user.

Guarantees:
- one login is under way at a time, whichever threads and event loops ask, in a thread of its own;
- whoever stops waiting, by a time limit or for good, neither ends it nor begins another one;
- whoever waits when it fails is told why;
- `login_rules.py` decides when there is one.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from random import Random

from rljob_client.backoff import Backoff
from rljob_client.identity import CredentialsError, Identity
from rljob_client.login_rules import LoginRules, Pace, Step

COMMAND_PACE = Pace(Backoff(base_seconds=0.5, cap_seconds=30.0), early_seconds=60.0)
"""For a command, and for an identity provider."""
FILE_PACE = Pace(Backoff(base_seconds=0.0, cap_seconds=0.0), early_seconds=0.0)
"""For a file, which may be read as often as somebody asks."""


class SharedLogin:
    """Who speaks, and how the server is told. Safe to use from several threads and event loops."""

    def __init__(
        self,
        log_in: Callable[[], Identity],
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
        random: Random | None = None,
        first: Identity | None = None,
    ) -> None:
        """`log_in` reads a file or runs a command; it must end by itself, and raises `CredentialsError`.
        `first`: what it gave at a first time, just now."""
        self._log_in = log_in
        self._clock = clock
        self._rules: LoginRules[Identity] = LoginRules(pace, random or Random())
        self._lock = threading.Lock()
        self._under_way: Future[str | None] | None = None
        if first is not None:
            self._rules.came(first, first.lifetime, clock())

    async def identity(self, newest: bool = False) -> Identity:
        """Who speaks. Waits for a login where none is at hand that is still valid, and with `newest` for one
        that is wanted or under way in any case. Raises `CredentialsError`, with why the login failed."""
        with self._lock:
            step = self._rules.wanted(self._clock())
            if step in (Step.BEGIN, Step.RENEW):
                self._under_way = self._begun()
            current, error, under_way = self._rules.current, self._rules.error, self._under_way
        if step is Step.FAIL:
            raise CredentialsError(error)
        if current is not None and (under_way is None or (not newest and step in (Step.USE, Step.RENEW))):
            return current
        assert under_way is not None
        failed = await asyncio.wrap_future(under_way)
        with self._lock:
            current, usable = self._rules.current, self._rules.usable(self._clock())
        if current is None or (failed is not None and not usable):
            raise CredentialsError(failed)
        return current

    async def other(self, refused: Identity) -> Identity | None:
        """The server did not accept this one. Who speaks now, after a login where one is due; None where it
        is still the same. Raises `CredentialsError`, with why the login failed."""
        with self._lock:
            self._rules.refused(refused, self._clock())
        found = await self.identity()
        return None if found == refused else found

    def renewed_in(self) -> float | None:
        """Seconds until a new login is wanted, by the time that what is in use is valid; None: for as long as
        the server takes it."""
        with self._lock:
            left = self._rules.renew_at - self._clock()
        return left if left < inf else None

    def _begun(self) -> Future[str | None]:
        under_way: Future[str | None] = Future()
        # So that whoever stops waiting for it cannot cancel it for the others.
        under_way.set_running_or_notify_cancel()
        # Not of a pool, which would hold up the end of the process until the command has ended.
        thread = threading.Thread(target=self._run, args=(under_way,), name="login", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            failed = "the login cannot begin: the process may not have another thread"
            self._rules.failed(failed, self._clock())
            under_way.set_result(failed)
        return under_way

    def _run(self, under_way: Future[str | None]) -> None:
        """Log in, and tell all who wait: None, or why it failed."""
        failed = None
        try:
            found = self._log_in()
        except CredentialsError as error:
            failed = str(error)
        except BaseException as error:
            # A defect. Its text may hold a secret.
            failed = f"the login failed: {type(error).__name__}"
            raise
        finally:
            with self._lock:
                if failed is None:
                    self._rules.came(found, found.lifetime, self._clock())
                else:
                    self._rules.failed(failed, self._clock())
                self._under_way = None
            under_way.set_result(failed)
