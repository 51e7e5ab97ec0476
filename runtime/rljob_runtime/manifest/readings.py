"""Values without quotes that YAML reads as something that looks otherwise, such as 0123, which is 83. Pure.

Guarantees: where a message tells such a value, what the file says is told beside it.
"""

import re
from dataclasses import dataclass

_LONGEST = 60
"""Characters of what a file says that are shown."""


@dataclass(frozen=True)
class Reading:
    """One such value."""

    written: str
    """As it stands in the file."""
    read: str
    """As messages tell what is read there."""

    def told_in(self, message: str) -> str:
        """A sentence for people, where a message tells the value; or ""."""
        if not re.search(rf"(?<![\w.-]){re.escape(self.read)}(?!\w|\.\d)", message):
            return ""
        return f"The file says {self.written[:_LONGEST]}, which YAML reads as {self.read}."


def reading(written: str, value: object) -> Reading | None:
    """How a value without quotes is read; None where it is told as it is written."""
    if isinstance(value, str):
        return None
    read = "nothing" if value is None else str(value).lower()
    plain = ("null", "") if value is None else (read,)
    return None if written in plain else Reading(written, read)
