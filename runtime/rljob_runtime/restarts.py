"""How often a part of the job may be restarted.

Guarantees: a part that fails again and again without doing its work in between ends the job with its last
error, one that cannot come up after its second start; one that fails now and then is always restarted. Pure.
"""

import re
from dataclasses import dataclass

_OF_CODE_OR_SETTINGS = re.compile(
    r"\b(Assertion|Attribute|Import|Index|Key|ModuleNotFound|Name|NotImplemented|Type|Validation|Value)Error\b"
)
"""Errors that come of the code that runs and of what it is given. Another start has the same of both."""
_PASSING = re.compile(r"memory|connection|address|timeout|timed out", re.IGNORECASE)
"""What one of them may still be about that is another thing a moment later."""


class GivenUp(RuntimeError):
    """A part of the job keeps failing; the message says which and why."""


def starts_in_vain(before: str, now: str) -> bool:
    """Whether a part that has ended twice in a row by these words, without having done any work, would end so
    at its next start too. Words that tell of no error of code or settings decide nothing: memory, a device or
    a file system may be back by then."""
    # Numbers of processes are others each time.
    alike = re.sub(r"\d+", "", before) == re.sub(r"\d+", "", now)
    return alike and bool(_OF_CODE_OR_SETTINGS.search(now)) and not _PASSING.search(now)


@dataclass
class RestartBudget:
    """Counts failures of one part since it last did its work."""

    part: str
    limit: int = 3
    """How many failures in a row are answered with a restart; one more ends the job."""
    failures: int = 0
    first: str = ""
    """Why the first of them was one: later ones are often no more than what it left behind."""
    untried: str = ""
    """Why the last one was, where the part had never done any work by then; else empty."""

    def failed(self, why: str, untried: bool = False) -> None:
        """The part failed; to be called before it is restarted. `untried`: it has not done any work since the
        job began. Raises `GivenUp` when it is not to be restarted."""
        if untried and starts_in_vain(self.untried, why):
            raise GivenUp(
                f"{self.part} failed twice in the same way before it did any work, as it would again: {why}"
            )
        self.untried = why if untried else ""
        self.failures += 1
        if self.failures == 1:
            self.first = why
        if self.failures > self.limit:
            begun = "" if self.first == why else f" the first time: {self.first};"
            raise GivenUp(f"{self.part} failed {self.failures} times in a row;{begun} the last time: {why}")

    def worked(self) -> None:
        """The part did its work, whatever that is: the next failure is the first in a row."""
        self.failures = 0
