"""How often a part of the job may be restarted.

Guarantees: a part that fails again and again without doing its work in between ends the job with its last
error; one that fails now and then is always restarted. Pure.
"""

from dataclasses import dataclass


class GivenUp(RuntimeError):
    """A part of the job keeps failing; the message says which and why."""


@dataclass
class RestartBudget:
    """Counts failures of one part since it last did its work."""

    part: str
    limit: int = 3
    """How many failures in a row are answered with a restart; one more ends the job."""
    failures: int = 0
    first: str = ""
    """Why the first of them was one: later ones are often no more than what it left behind."""

    def failed(self, why: str) -> None:
        """The part failed; to be called before it is restarted. Raises `GivenUp` when it is not to be."""
        self.failures += 1
        if self.failures == 1:
            self.first = why
        if self.failures > self.limit:
            begun = "" if self.first == why else f" the first time: {self.first};"
            raise GivenUp(f"{self.part} failed {self.failures} times in a row;{begun} the last time: {why}")

    def worked(self) -> None:
        """The part did its work, whatever that is: the next failure is the first in a row."""
        self.failures = 0
