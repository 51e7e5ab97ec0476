"""What the queue's clients and its server say to each other: one MessagePack header, then a payload frame.

Guarantees: what `decode_request`, `decode_reply` and `unpack_groups` return was checked against its type and
bounds; anything else raises `msgspec.DecodeError`. Nothing is unpickled. The bytes of groups are opaque here.

Groups travel back to back in payload frames of `FRAME_BYTES`: many small groups share one, for ten small
frames cost more than one large one, and a large group is cut into several. The header names the groups'
sizes. All frames but the last go ahead of the message as `Part`s, each a message of its own. So a message of
any size is seen to move, frame by frame, by both sides: who receives parts knows that its peer lives, who
sends them is told of each (`PartTaken`).

A client numbers its requests from 1. It may send one again (a connection was lost, or the server was
restarted): the server answers a number that it knows with the first answer, and does nothing twice. What was
sent over a connection that still stands is on its way and is never sent again: ZeroMQ delivers the messages
of a connection in order, or breaks it.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec

from rljob_runtime.net.messages import Buffer, decode_typed

MAX_GROUP_BYTES = 64 * 2**20
"""Largest frame of a group, unless the server is given another limit."""
MAX_GROUPS = 100_000
"""Most groups in one request."""
FRAME_BYTES = 2**20
"""Size of a payload frame. A connection counts as broken when not one frame arrives within 20 s
(`net.auth`), so that this also says how slow a line may be: about 50 KB/s."""
MAX_FRAME_BYTES = 16 * 2**20
"""A longer frame closes its connection; the longest header, with `MAX_GROUPS` groups, has 2 MB."""
MAX_PARTS = 2**20
"""Most parts of one message."""
MAX_OPEN = 100_000
"""Most requests of one client that may be unanswered, or whose answers it may not have confirmed."""

Uid: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Uids: TypeAlias = Annotated[tuple[Uid, ...], msgspec.Meta(max_length=MAX_GROUPS)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_GROUPS)]
Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Sizes: TypeAlias = Annotated[tuple[Size, ...], msgspec.Meta(max_length=MAX_GROUPS)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
"""Number of a client's request."""
Numbers: TypeAlias = Annotated[tuple[Number, ...], msgspec.Meta(max_length=MAX_OPEN)]
Term: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
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
    """Given back because the get that took them was given up."""
    expired: int
    """Taken back from a client that left or was silent."""
    cleared: int
    """Thrown away because the job went back to a checkpoint, or has them as done."""
    refused: dict[str, int] = {}
    """Messages and connections that the server refused, by kind."""


# On the wire an array without field names, and one that is too long is refused.
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


class Ack(_Message, frozen=True, tag="ack"):
    """Record that these groups were trained; `term` is that in which they were leased."""

    uids: Uids
    term: Term


class Reset(_Message, frozen=True, tag="reset"):
    """What is done, as of `term`; see `Broker.reset`."""

    term: Term
    watermark: Uid
    ahead: Annotated[tuple[Uid, ...], msgspec.Meta(max_length=1_000_000)]


class GetStats(_Message, frozen=True, tag="stats"):
    """The counters."""


class Heartbeat(_Message, frozen=True, tag="heartbeat"):
    """The client lives."""

    beat: Number
    """Number of this heartbeat; its answer names it."""
    open: Numbers
    """The requests whose answers it awaits."""
    abandoned: Numbers
    """Requests that it has given up: they are to end, and what they leased is to be returned."""


class Bye(_Message, frozen=True, tag="bye"):
    """The client leaves."""


class Part(_Message, frozen=True, tag="part"):
    """One payload frame of the message of the same number, which follows; in either direction."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARTS)]
    """Its place among the parts of the message; 0 begins the message anew."""


Body: TypeAlias = Put | Get | Ack | Reset | GetStats | Heartbeat | Bye | Part


class Request(_Message, frozen=True):
    """A message to the server."""

    client: Name
    token: str
    """The shared token where the transport does not authenticate; else empty."""
    number: Number
    """Number of this request. A heartbeat or bye uses up none: it has that of the next request."""
    oldest: Number
    """Smallest number that is open or abandoned: the answers below need not be kept."""
    body: Body
    parts: Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTS)] = 0
    """How many parts of its payload went ahead."""


# Replies

RefusalKind: TypeAlias = Literal["token", "malformed", "too_large", "impossible", "term"]


class Stored(_Message, frozen=True, tag="stored"):
    """Answers `Put`: for each group whether the queue has it; else its uid is done or another group's."""

    accepted: tuple[bool, ...]


class Groups(_Message, frozen=True, tag="groups"):
    """Answers `Get`; the groups follow."""

    uids: tuple[int, ...]
    samples: tuple[int, ...]
    sizes: tuple[int, ...]
    """Bytes of each group."""
    term: int


class Acked(_Message, frozen=True, tag="acked"):
    """Answers `Ack`: for each group whether it was not done before."""

    fresh: tuple[bool, ...]


class Counted(_Message, frozen=True, tag="counted"):
    """Answers `Reset`: how many groups were thrown away."""

    count: int


class StatsReply(_Message, frozen=True, tag="stats"):
    """Answers `GetStats`."""

    stats: Stats


class Alive(_Message, frozen=True, tag="alive"):
    """Answers `Heartbeat`."""

    beat: int
    unknown: tuple[int, ...]
    """Those among `open` that are to be sent again, for the server does not know them."""
    abandoned: tuple[int, ...]
    """Those that have ended as the heartbeat asked."""


class Refused(_Message, frozen=True, tag="refused"):
    """The request was not carried out."""

    kind: RefusalKind
    why: str


class PartTaken(_Message, frozen=True, tag="taken"):
    """Answers each `Part` of a request: the part has arrived, so the request moves."""


Answer: TypeAlias = Stored | Groups | Acked | Counted | StatsReply | Alive | Refused | Part | PartTaken


class Reply(_Message, frozen=True):
    """A message from the server."""

    number: int
    """Number of the request that it answers; 0 where that could not be read, and for `Alive`."""
    body: Answer
    parts: int = 0
    """How many parts of its payload went ahead."""


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(Request)
_reply_decoder = msgspec.msgpack.Decoder(Reply)


def encode(message: Request | Reply) -> bytes:
    """The header frame of a message."""
    return _encoder.encode(message)


def decode_request(frames: Sequence[Buffer]) -> tuple[Request, list[Buffer]]:
    """A request and its payload frames: one for a part, at most one else."""
    header, *payload = frames or (b"",)
    request = decode_typed(_request_decoder, header)
    _check_payload(isinstance(request.body, Part), payload)
    return request, payload


def decode_reply(frames: Sequence[Buffer]) -> tuple[Reply, list[Buffer]]:
    """A reply and its payload frames: one for a part, at most one else."""
    header, *payload = frames or (b"",)
    reply = decode_typed(_reply_decoder, header)
    _check_payload(isinstance(reply.body, Part), payload)
    return reply, payload


def _check_payload(part: bool, payload: Sequence[Buffer]) -> None:
    # As a number, `part` is the least number of frames.
    if len(payload) > 1 or len(payload) < part:
        raise msgspec.DecodeError(f"{len(payload)} payload frames: a part needs 1, others at most 1")


def messages(head: Callable[[Part | None, int], bytes], groups: Sequence[bytes]) -> list[list[Buffer]]:
    """All messages, as frames, that carry a body and its groups. `head` makes the header of a part, or with
    None that of the body, from the part or None and the number of parts."""
    frames = pack(groups)
    parts, last = frames[:-1], frames[-1:]
    ahead: list[list[Buffer]] = [[head(Part(index), 0), part] for index, part in enumerate(parts)]
    return [*ahead, [head(None, len(parts)), *last]]


class Parts:
    """The parts of one message that have come so far."""

    def __init__(self) -> None:
        self._frames: list[Buffer] = []

    def take(self, index: int, frame: Buffer) -> None:
        """One has come. After a gap, which only a lost connection makes, what came before is of no use: the
        message will be sent again from its first part on."""
        if index != len(self._frames):
            self._frames.clear()
        if index == len(self._frames):
            self._frames.append(frame)

    def whole(self, count: int, last: Sequence[Buffer]) -> list[Buffer] | None:
        """All payload frames of a message with `count` parts; None where some of them were lost."""
        return [*self._frames, *last] if len(self._frames) == count else None


def unpack_groups(body: Body | Answer, payload: Sequence[Buffer]) -> list[bytes]:
    """The groups that belong to a body; raises `msgspec.DecodeError` where they do not fit to it."""
    if isinstance(body, Put):
        if not len(set(body.uids)) == len(body.uids) == len(body.samples) == len(body.sizes):
            raise msgspec.DecodeError(
                "a put needs distinct uids, and for each a number of samples and a size"
            )
        return unpack(body.sizes, payload)
    if isinstance(body, Groups):
        if not len(body.uids) == len(body.samples) == len(body.sizes):
            raise msgspec.DecodeError("groups need a number of samples and a size each")
        return unpack(body.sizes, payload)
    return unpack((), payload)


def pack(groups: Sequence[bytes]) -> list[Buffer]:
    """Payload frames that hold these, in order, each but the last of `FRAME_BYTES`."""
    frames: list[Buffer] = []
    pieces: list[Buffer] = []
    room = FRAME_BYTES
    for group in groups:
        rest: Buffer = group
        while len(rest) > room:
            # A large group is not copied: its frames are views of it.
            view = memoryview(rest)
            pieces.append(view[:room])
            rest = view[room:]
            frames.append(_joined(pieces))
            pieces, room = [], FRAME_BYTES
        if len(rest):
            pieces.append(rest)
            room -= len(rest)
    if pieces:
        frames.append(_joined(pieces))
    return frames


def _joined(pieces: Sequence[Buffer]) -> Buffer:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def unpack(sizes: Sequence[int], frames: Sequence[Buffer]) -> list[bytes]:
    """The groups, of these sizes in bytes, that `pack` put into the frames. Raises `msgspec.DecodeError`
    where sizes and frames do not fit together."""
    missing = sum(sizes) - sum(map(len, frames))
    if missing:
        how = "shorter" if missing > 0 else "longer"
        raise msgspec.DecodeError(f"payload frames are {how} than the groups in them")
    groups: list[bytes] = []
    rest = iter(frames)
    frame = memoryview(b"")
    for size in sizes:
        pieces: list[memoryview] = []
        while size > len(frame):
            pieces.append(frame)
            size -= len(frame)
            # There is a next one, since the sums are equal.
            frame = memoryview(next(rest))
        pieces.append(frame[:size])
        frame = frame[size:]
        groups.append(b"".join(pieces))
    return groups
