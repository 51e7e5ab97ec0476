"""When somebody logs in, and what requests do meanwhile. Pure: it is told what happens, and the time.

Guarantees:
- one login is under way at most;
- what the server refused is thrown away once: refusals of what is not in use any more change nothing;
- a login that fails, and one whose answer the server refuses, is followed by the next one only after a wait
  that grows, however many requests ask; until then the failure is told at once;
- what is in use is used until it ends, also while a login is under way or fails.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from random import Random
from typing import Generic, TypeVar

from rljob_client.backoff import Backoff, Failures

ValueT = TypeVar("ValueT")

_SHORT_SECONDS = 5.0
"""What is valid for less when it comes may be so because of somebody's clock: it is used for longer and
longer, so that not each request logs in."""
_YOUNG_SECONDS = 60.0
"""A refusal after a longer use begins a new row."""


@dataclass(frozen=True)
class Pace:
    """How often a login may be tried, and how early."""

    backoff: Backoff
    """Between logins that came to nothing."""
    early_seconds: float
    """A new login begins this long before the end of what is in use, or at half of its time if that is
    later."""


class Step(Enum):
    """What a request does."""

    USE = auto()
    """Goes with what is in use."""
    WAIT = auto()
    """Waits for the login that is under way."""
    BEGIN = auto()
    """Begins a login, and waits for it."""
    RENEW = auto()
    """Begins a login, and goes with what is in use meanwhile."""
    FAIL = auto()
    """Is told why the last login failed."""


@dataclass
class LoginRules(Generic[ValueT]):
    """The state. Times are in seconds of one clock."""

    pace: Pace
    random: Random
    current: ValueT | None = None
    """What is in use; still there when it has ended, or was refused."""
    error: str | None = None
    """Why the last login failed; None where it did not."""
    under_way: bool = False
    """A login has begun and not ended."""
    renew_at: float = inf
    """From then on a new login is wanted."""
    _ends_at: float = field(default=inf, init=False)
    _came_at: float = field(default=-inf, init=False)
    _refused: bool = field(default=False, init=False)
    _not_before: float = field(default=-inf, init=False)

    def __post_init__(self) -> None:
        self._failed = Failures(self.pace.backoff, self.random)
        self._refusals = Failures(self.pace.backoff, self.random)
        self._short = Failures(self.pace.backoff, self.random)

    def usable(self, now: float) -> bool:
        """Whether what is in use has neither ended nor been refused."""
        return self.current is not None and not self._refused and now < self._ends_at

    def wanted(self, now: float) -> Step:
        """What a request does now. After BEGIN or RENEW `came` or `failed` must follow."""
        usable = self.usable(now)
        if usable and (self.under_way or now < max(self.renew_at, self._not_before)):
            return Step.USE
        if self.under_way:
            return Step.WAIT
        if now < self._not_before:
            # Where all logins worked, the server refuses what they give: its own words say more.
            return Step.USE if self.error is None else Step.FAIL
        self.under_way = True
        return Step.RENEW if usable else Step.BEGIN

    def came(self, value: ValueT, lifetime: float, now: float) -> None:
        """A login has ended with this; `lifetime`: seconds for which it is valid, `inf`: until it is refused.
        What is equal to what is in use does not take its place, unless that was refused: whoever it is, the
        server may take him from then on, and nobody says so."""
        self.under_way, self.error = False, None
        self._failed.worked()
        if value != self.current or self._refused:
            self.current, self._refused, self._came_at = value, False, now
        if lifetime < _SHORT_SECONDS:
            lifetime = max(lifetime, self._short.failed())
        else:
            self._short.worked()
        self._ends_at = now + lifetime
        self.renew_at = self._ends_at - min(self.pace.early_seconds, lifetime / 2) if lifetime < inf else inf

    def failed(self, error: str, now: float) -> None:
        """A login has ended without anything."""
        self.under_way, self.error = False, error
        self._not_before = now + self._failed.failed()

    def refused(self, value: ValueT, now: float) -> None:
        """The server did not accept this."""
        if value is not self.current or self._refused:
            return
        self._refused = True
        if now - self._came_at >= _YOUNG_SECONDS:
            self._refusals.worked()
        wait = self._refusals.failed()
        # The first one is followed by a login at once: what came may have been old by then. So may what came
        # longer ago than the wait of others.
        if self._refusals.in_a_row > 1:
            self._not_before = max(self._not_before, self._came_at + wait)
