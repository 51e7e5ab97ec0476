"""A file of a model's folder that holds one JSON object, such as config.json.

Guarantees: what is wrong with one is told with its path and what to do; whatever is read here, transformers
reads too.
"""

import codecs
import json
from pathlib import Path
from typing import Any

from rljob_runtime.data.errors import COMPRESSED, GZIP, IN_LFS, LFS, one_line
from rljob_runtime.given_files import read_bounded

_AGAIN = "copy it from the model again"
_BYTES = 256 << 20
"""Most that is read. The largest tokenizers have some tens of megabytes."""
_UTF16 = "it is UTF-16 text: write it as UTF-8"
_OTHERS = {
    codecs.BOM_UTF8: "it begins with a byte order mark, which transformers does not read: write it as UTF-8 "
    "without one",
    codecs.BOM_UTF16_LE: _UTF16,
    codecs.BOM_UTF16_BE: _UTF16,
    GZIP: COMPRESSED,
    LFS: IN_LFS,
}
"""What is told of a file by what it begins with."""


class NoJsonObject(ValueError):
    """The file holds none; the message has its path, what is wrong, and what to do."""


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file. Raises `NoJsonObject`."""
    try:
        content = read_bounded(path, _BYTES)
    except OSError as error:
        raise NoJsonObject(f"{path} cannot be read: {error.strerror or error}") from error
    for begin, why in _OTHERS.items():
        if content.startswith(begin):
            raise NoJsonObject(f"{path}: {why}")
    if not content.strip():
        raise NoJsonObject(f"{path} is empty: {_AGAIN}")
    try:
        value = json.loads(content.decode())
    except RecursionError as error:
        raise NoJsonObject(f"{path} is nested too deeply to be read: {_AGAIN}") from error
    except ValueError as error:
        raise NoJsonObject(f"{path} is not JSON: {one_line(error)}: {_AGAIN}") from error
    if not isinstance(value, dict):
        raise NoJsonObject(f"{path} holds no JSON object: {_AGAIN}")
    return value
