"""What a server of folders and those who fetch from it say to each other: one header frame, for a chunk a
second one with its bytes.

Guarantees: what the decoders return was checked against its type and bounds; anything else raises
`msgspec.DecodeError`. Nothing is unpickled.
"""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from rljob_runtime.net.messages import decode_typed
from rljob_runtime.weights.contents import FileEntry

CHUNK_BYTES = 2**20
"""Bytes of a file that one message carries."""
MAX_REQUEST_BYTES = 4096
MAX_FILES = 10_000
"""Most files in one folder."""
_LARGEST_FILE = 2**53
"""Bytes: larger than any file, and far enough below 2**63, from which on seeking itself would fail."""

_Name: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$", max_length=255)]
"""Name of a folder: a single part of a path, which does not begin with a dot."""
_File: TypeAlias = Annotated[str, Meta(pattern=r"^[^./\x00][^/\x00]*\Z", max_length=255)]
"""Name of a file: the same, with whatever characters people give to what lies beside a model."""


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    """Which files are in the folder?"""

    checksums: bool
    """Whether the answer has the checksum of each file."""


class Read(msgspec.Struct, frozen=True, tag="read"):
    """The bytes of a file from `offset` on, `CHUNK_BYTES` or what is left."""

    file: _File
    offset: Annotated[int, Meta(ge=0, le=_LARGEST_FILE)]


class Request(msgspec.Struct, frozen=True):
    """A question about one folder."""

    token: str
    """The shared token where the transport does not authenticate; else empty."""
    number: Annotated[int, Meta(ge=0, le=2**53)]
    """Comes back with the answer, which need not be the next one to arrive."""
    folder: _Name
    body: Describe | Read


class Files(msgspec.Struct, frozen=True, tag="files"):
    """The folder's files."""

    files: Annotated[tuple[FileEntry, ...], Meta(max_length=MAX_FILES)]


class Chunk(msgspec.Struct, frozen=True, tag="chunk"):
    """The second frame holds the bytes."""


class Gone(msgspec.Struct, frozen=True, tag="gone"):
    """There is no such folder, or no such file in it, any more."""

    why: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The request was not read, or its sender is not let in."""

    why: str


class Answer(msgspec.Struct, frozen=True):
    """A message from the server."""

    number: int
    body: Files | Chunk | Gone | Refused


_request = msgspec.msgpack.Decoder(Request)
_answer = msgspec.msgpack.Decoder(Answer)
encode = msgspec.msgpack.Encoder().encode


def decode_request(frames: Sequence[bytes]) -> Request:
    """A request; raises `msgspec.DecodeError` for anything else."""
    if len(frames) != 1:
        raise msgspec.DecodeError(f"{len(frames)} frames, not 1")
    return decode_typed(_request, frames[0])


def decode_answer(frames: Sequence[bytes]) -> tuple[Answer, bytes]:
    """An answer and the bytes of its chunk; raises `msgspec.DecodeError` for anything else."""
    if not frames:
        raise msgspec.DecodeError("no frame")
    answer = decode_typed(_answer, frames[0])
    if len(frames) != (2 if isinstance(answer.body, Chunk) else 1):
        raise msgspec.DecodeError(f"{len(frames)} frames with {type(answer.body).__name__}")
    return answer, frames[-1]
