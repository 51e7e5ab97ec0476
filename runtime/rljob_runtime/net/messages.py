"""Decoding what came over the network, or stands in a file that anything may have written to.

Guarantees: a decoder's result was checked against its type; whatever else arrives raises
`msgspec.DecodeError` and nothing else, so that one `except` suffices in a loop that must go on.
"""

from typing import TypeAlias, TypeVar

import msgspec

Buffer: TypeAlias = bytes | memoryview
_T = TypeVar("_T")


def decode_typed(decoder: "msgspec.msgpack.Decoder[_T] | msgspec.json.Decoder[_T]", data: Buffer) -> _T:
    """What `decoder` makes of a frame; raises `msgspec.DecodeError` for whatever is wrong with it."""
    try:
        return decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        # msgspec lets these two through: a text that is not UTF-8, and values nested too deeply.
        raise msgspec.DecodeError(str(error)) from None
