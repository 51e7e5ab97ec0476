"""How long to wait after failures in a row: exponential, capped, with jitter. Pure."""

from dataclasses import dataclass
from random import Random

_MAX_EXPONENT = 64
"""A power of hundreds of failures would overflow; the cap is reached long before this one."""


@dataclass(frozen=True)
class Backoff:
    """Waits of `base_seconds`, times `factor` for each further failure, at most `cap_seconds`."""

    base_seconds: float
    cap_seconds: float
    factor: float = 2.0
    jitter: float = 0.5
    """Share of each wait that is drawn at random, so that those who failed together do not retry together."""

    def delay(self, failures: int, random: Random) -> float:
        """Seconds to wait after the `failures`-th failure in a row, counted from 1."""
        whole = self.base_seconds * self.factor ** min(failures - 1, _MAX_EXPONENT)
        return min(whole, self.cap_seconds) * (1.0 - self.jitter * random.random())


@dataclass
class Failures:
    """Counts the failures in a row of something that is tried time and again."""

    backoff: Backoff
    random: Random
    in_a_row: int = 0

    def failed(self) -> float:
        """One more; seconds to wait."""
        self.in_a_row += 1
        return self.backoff.delay(self.in_a_row, self.random)

    def worked(self) -> None:
        """The row has ended."""
        self.in_a_row = 0
