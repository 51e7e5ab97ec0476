"""How long to wait before another try. Pure: the randomness is passed in."""

import random
from dataclasses import dataclass


@dataclass
class BackOff:
    """Waits that double from `first` to `longest` seconds, each shortened by up to a half at random, so that
    many clients of a server that comes back do not arrive together."""

    rng: random.Random
    first: float = 0.5
    longest: float = 30.0
    failures: int = 0

    def failed(self) -> float:
        """One more failure in a row; seconds to wait."""
        # The exponent has a limit of its own: 2.0 ** 1024 overflows.
        whole: float = min(self.longest, self.first * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return whole * (1 - 0.5 * self.rng.random())

    def worked(self) -> None:
        """A try succeeded."""
        self.failures = 0
