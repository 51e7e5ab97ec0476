"""The lines of a file of a run that is appended to, also after a kill in the middle of one.

Guarantees: what follows the last whole line is none; a line in the middle that was cut off earlier is given
without its head.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

HeadT = TypeVar("HeadT")


def whole_lines(path: Path, head_of: Callable[[bytes], HeadT]) -> Iterator[tuple[HeadT | None, bytes]]:
    """Each whole line, with what `head_of` decodes of it; None where it cannot. Raises `OSError`."""
    with path.open("rb") as file:
        for line in file:
            # Cut off by a kill.
            if not line.endswith(b"\n"):
                return
            try:
                yield head_of(line), line
            except (msgspec.DecodeError, UnicodeDecodeError):
                yield None, line
