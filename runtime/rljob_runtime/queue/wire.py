"""What the queue's clients and its server say to each other: one MessagePack header, then payload frames.

Guarantees: what `decode_request` and `decode_reply` return was checked against its type and bounds; anything
else raises `msgspec.DecodeError`. Nothing is unpickled. The bytes of groups are opaque here.

Groups travel back to back in payload frames of up to `FRAME_BYTES`, for ten small frames cost more than one
large one; the header names their sizes. A larger group has a frame of its own.

A client numbers its requests from 1. It may send one again (a reply was lost, or the server was restarted):
the server answers a number that it knows with the first answer, and does nothing twice.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec

from rljob_runtime.net.messages import Buffer, decode_typed

MAX_GROUP_BYTES = 64 * 2**20
"""Largest frame of a group, unless the server is given another limit."""
MAX_GROUPS = 100_000
"""Most groups in one request."""
FRAME_BYTES = 2**20
"""Groups are put together into payload frames up to this size."""

Uid: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Uids: TypeAlias = Annotated[tuple[Uid, ...], msgspec.Meta(max_length=MAX_GROUPS)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_GROUPS)]
Sizes: TypeAlias = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=MAX_GROUPS)
]
Term: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class QueuedGroup(NamedTuple):
    """A group as the queue sees it."""

    uid: int
    samples: int
    frame: bytes
    """The group in wire form; opaque."""


class Stats(msgspec.Struct, frozen=True):
    """What is in the queue, and what went through it; groups unless said otherwise."""

    capacity_samples: int
    term: int
    """How often the job went back to a checkpoint."""
    ready: int
    leased: int
    held_samples: int
    """Samples of ready and leased groups."""
    waiting_puts: int
    """Puts that wait for room."""
    waiting_gets: int
    clients: int
    done: int
    """Known as done, including those of earlier runs of the job."""
    accepted: int
    duplicates: int
    acknowledged: int
    acknowledged_again: int
    acknowledged_unseen: int
    """Acknowledged without having been put: taken from an earlier queue host."""
    stale_acknowledgements: int
    """Refused because the job went back to a checkpoint in between."""
    released: int
    """Given back by their client."""
    expired: int
    """Taken back from a client that left or was silent."""
    cleared: dict[str, int]
    """By reason."""
    refused: dict[str, int] = {}
    """Messages and connections that the server refused, by kind."""


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


# Requests


class Put(_Message, frozen=True, tag="put"):
    """Store the groups that follow."""

    uids: Uids
    samples: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_GROUPS)]
    sizes: Sizes
    """Bytes of each group."""


class Get(_Message, frozen=True, tag="get"):
    """Lease exactly these, once all are ready."""

    uids: Uids


class GetOldest(_Message, frozen=True, tag="oldest"):
    """Lease the oldest `count`, once so many are ready."""

    count: Count


class Ack(_Message, frozen=True, tag="ack"):
    """These were trained; `term` is that in which they were leased."""

    uids: Uids
    term: Term


class Release(_Message, frozen=True, tag="release"):
    """Take these back."""

    uids: Uids


class Clear(_Message, frozen=True, tag="clear"):
    """Throw these away."""

    uids: Uids
    reason: Name


class Reset(_Message, frozen=True, tag="reset"):
    """What is done, as of `term`; see `Broker.reset`."""

    term: Term
    watermark: Uid
    ahead: tuple[Uid, ...]


class Snapshot(_Message, frozen=True, tag="snapshot"):
    """All that is held."""


class GetStats(_Message, frozen=True, tag="stats"):
    """The counters."""


class Heartbeat(_Message, frozen=True, tag="heartbeat"):
    """The client lives."""

    open: tuple[int, ...]
    """The requests whose answers it awaits."""
    abandoned: tuple[int, ...]
    """Requests that it has given up: they are to end, and what they leased is to be returned."""


class Bye(_Message, frozen=True, tag="bye"):
    """The client leaves."""


Body: TypeAlias = (
    Put | Get | GetOldest | Ack | Release | Clear | Reset | Snapshot | GetStats | Heartbeat | Bye
)  # fmt: skip


class Request(_Message, frozen=True):
    """A message to the server."""

    client: Name
    token: str
    """The shared token where the transport does not authenticate; else empty."""
    number: Annotated[int, msgspec.Meta(ge=1)]
    """Of this request; a heartbeat or bye, which is not answered by number, uses up none."""
    oldest: Annotated[int, msgspec.Meta(ge=1)]
    """Smallest number that is open or abandoned: the answers below need not be kept."""
    body: Body


# Replies

RefusalKind: TypeAlias = Literal["token", "malformed", "too_large", "impossible", "term"]


class Stored(_Message, frozen=True, tag="stored"):
    """Answers `Put`: for each group whether the queue has it; else its uid is done or another group's."""

    accepted: tuple[bool, ...]


class Groups(_Message, frozen=True, tag="groups"):
    """Answers `Get`, `GetOldest` and `Snapshot`; the groups follow."""

    uids: tuple[int, ...]
    samples: tuple[int, ...]
    sizes: tuple[int, ...]
    """Bytes of each group."""
    term: int


class Acked(_Message, frozen=True, tag="acked"):
    """Answers `Ack`: for each group whether it was not done before."""

    fresh: tuple[bool, ...]


class Counted(_Message, frozen=True, tag="counted"):
    """Answers `Release`, `Clear` and `Reset`: how many groups it concerned."""

    count: int


class StatsReply(_Message, frozen=True, tag="stats"):
    """Answers `GetStats`."""

    stats: Stats


class Alive(_Message, frozen=True, tag="alive"):
    """Answers `Heartbeat`."""

    unknown: tuple[int, ...]
    """Those among `open` that are to be sent again, for the server does not know them."""
    abandoned: tuple[int, ...]
    """Those that have ended as the heartbeat asked."""


class Refused(_Message, frozen=True, tag="refused"):
    """The request was not carried out."""

    kind: RefusalKind
    why: str


Answer: TypeAlias = Stored | Groups | Acked | Counted | StatsReply | Alive | Refused


class Reply(_Message, frozen=True):
    """A message from the server."""

    number: int
    """Of the request; 0 where it could not be read, and for `Alive`."""
    body: Answer


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(Request)
_reply_decoder = msgspec.msgpack.Decoder(Reply)


def encode(message: Request | Reply) -> bytes:
    """The header frame of a message."""
    return _encoder.encode(message)


def decode_request(frames: Sequence[Buffer]) -> tuple[Request, list[bytes]]:
    """A request and the groups that came with it."""
    header, *payload = frames or (b"",)
    request = decode_typed(_request_decoder, header)
    body = request.body
    if not isinstance(body, Put):
        return request, unpack((), payload)
    if not len(set(body.uids)) == len(body.uids) == len(body.samples) == len(body.sizes):
        raise msgspec.DecodeError("a put needs distinct uids, and for each a number of samples and a size")
    return request, unpack(body.sizes, payload)


def decode_reply(frames: Sequence[Buffer]) -> tuple[Reply, list[bytes]]:
    """A reply and the groups that came with it."""
    header, *payload = frames or (b"",)
    reply = decode_typed(_reply_decoder, header)
    body = reply.body
    if not isinstance(body, Groups):
        return reply, unpack((), payload)
    if not len(body.uids) == len(body.samples) == len(body.sizes):
        raise msgspec.DecodeError("groups need a number of samples and a size each")
    return reply, unpack(body.sizes, payload)


def pack(groups: Sequence[bytes]) -> list[bytes]:
    """Payload frames that hold these, in order."""
    frames: list[bytes] = []
    start = size = 0
    for index, group in enumerate(groups):
        if size and size + len(group) > FRAME_BYTES:
            frames.append(b"".join(groups[start:index]))
            start, size = index, 0
        size += len(group)
    if start < len(groups):
        frames.append(b"".join(groups[start:]))
    return frames


def unpack(sizes: Sequence[int], frames: Sequence[Buffer]) -> list[bytes]:
    """What was packed; raises `msgspec.DecodeError` where sizes and frames do not fit together."""
    groups: list[bytes] = []
    rest = iter(frames)
    frame = memoryview(b"")
    position = 0
    for size in sizes:
        if position == len(frame):
            frame, position = memoryview(next(rest, b"")), 0
        end = position + size
        if end > len(frame):
            raise msgspec.DecodeError("payload frames are shorter than the groups in them")
        groups.append(frame[position:end].tobytes())
        position = end
    if position != len(frame) or next(rest, None) is not None:
        raise msgspec.DecodeError("payload frames are longer than the groups in them")
    return groups
