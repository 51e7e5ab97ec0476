"""The text that stands in a manifest where whoever wrote it must say something. Pure.

`rljob from-verl` writes it for a required text that the script does not tell.
"""

from collections.abc import Iterator
from typing import Any

from rljob_api.errors import Path, Problem

UNSET = "TO-BE-SET"
"""The text."""


def unset(value: Any, path: Path = ()) -> Iterator[Problem]:
    """A problem for each place in a document that still has the text."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from unset(below, (*path, name))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from unset(below, (*path, index))
    elif value == UNSET:
        yield Problem(path, f"is still {UNSET}: set it, or take the field out where it is optional")
