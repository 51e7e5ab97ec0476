"""What is in a *.safetensors, from its header alone. The file has the header's length in 8 bytes, the header,
which is JSON, and the tensors' numbers."""

import json
import os
from pathlib import Path
from typing import NamedTuple

from rljob_runtime.given_files import open_regular

_LONGEST = 100_000_000
"""Bytes of a header, as the format allows."""


class StoredTensor(NamedTuple):
    """A tensor in a file."""

    begin: int
    """Of its numbers in the file, in bytes."""
    end: int
    name: str
    dtype: str
    """As safetensors calls it."""
    shape: tuple[int, ...]


def read_header(file: Path) -> list[StoredTensor]:
    """The tensors of a file, in the order in which they lie in it. Raises `OSError`, and `ValueError` for one
    that is damaged or cut short."""
    with open_regular(file) as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 0 < length <= _LONGEST:
            raise ValueError(f"{file}: damaged (a header of {length} bytes)")
        content, size = opened.read(length), os.fstat(opened.fileno()).st_size
    start = 8 + length
    try:
        found = sorted(
            StoredTensor(start + begin, start + end, name, entry["dtype"], tuple(map(int, entry["shape"])))
            for name, entry in json.loads(content).items()
            if name != "__metadata__"
            for begin, end in [entry["data_offsets"]]
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file}: damaged ({type(error).__name__}: {error})") from None
    for each in found:
        if not start <= each.begin <= each.end <= size:
            raise ValueError(f"{file}: damaged ({each.name} does not lie in it whole)")
    return found
