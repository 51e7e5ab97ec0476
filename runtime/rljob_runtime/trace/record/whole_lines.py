"""The lines of a file of a run that is appended to, also after a kill in the middle of one.

Guarantees: what follows the last whole line is none; a line that cannot be decoded, such as one in the middle
that was cut off earlier, is given without its head.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from rljob_runtime.net.messages import decode_typed

HeadT = TypeVar("HeadT")


def whole_lines(path: Path, head: "msgspec.json.Decoder[HeadT]") -> Iterator[tuple[HeadT | None, bytes]]:
    """Each whole line, with what `head` decodes of it; None where it cannot. Raises `OSError`."""
    with path.open("rb") as file:
        for line in file:
            # Cut off by a kill.
            if not line.endswith(b"\n"):
                return
            try:
                yield decode_typed(head, line), line
            except msgspec.DecodeError:
                yield None, line


def read_all(path: Path, line: "msgspec.json.Decoder[HeadT]") -> list[HeadT]:
    """What `line` decodes of the whole lines, without those that it cannot; empty where there is no file.
    Raises `OSError`."""
    try:
        return [found for found, _ in whole_lines(path, line) if found is not None]
    except FileNotFoundError:
        return []
