"""JSON from an API server, decoded whatever others have stored there.

The parts of an object that no schema describes may be nested 10,000 levels deep, which is more than a decoder
of Python can go down, even where it only skips them; such an object may stand in a page of everybody's.

Guarantees: text that is nested too deep is decoded without what lies deep down, and without an effect on what
stands beside it. Pure.
"""

import re
from typing import TypeVar

import msgspec

LEVELS = 100
"""Of nesting that a text keeps in which there is more than can be decoded. Objects whose fields all have a
meaning have some twenty."""

AnswerT = TypeVar("AnswerT")

# Nothing else but brackets outside of strings says how deep one is. Those that stand together are one match.
_BRACKETS = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]|\\.)*+")*+([\[{]++|[\]}]++)', re.DOTALL)


def decode(body: bytes | msgspec.Raw, kind: type[AnswerT]) -> AnswerT:
    """`body` as `kind`; where it cannot be decoded for its depth, as `shallow` leaves it. Raises
    `msgspec.DecodeError`, also for what is no UTF-8, as a proxy's words may be."""
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except RecursionError:
            return msgspec.json.decode(shallow(bytes(body)), type=kind)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"no UTF-8: {error}") from error


def shallow(body: bytes, levels: int = LEVELS) -> bytes:
    """The same JSON, with null for each object and list that more than `levels` - 1 others are around."""
    # As many brackets as that are needed to be so deep: most texts are told by this alone.
    if body.count(b"{") + body.count(b"[") <= levels:
        return body
    kept: list[bytes] = []
    depth = begin = 0
    for match in _BRACKETS.finditer(body):
        at, end = match.span(1)
        if body[at] in b"{[":
            before, depth = depth, depth + end - at
            if before <= levels < depth:
                kept.append(body[begin : at + levels - before])
        else:
            before, depth = depth, depth - (end - at)
            if depth <= levels < before:
                kept.append(b"null")
                begin = at + before - levels
    if depth <= levels:
        kept.append(body[begin:])  # else it is cut off: no JSON, as whoever decodes it will say
    return b"".join(kept)
