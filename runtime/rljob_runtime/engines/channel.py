"""What `RemoteEngine` and `RolloutWorker` say to each other over ZeroMQ: one MessagePack frame per message.

Guarantees: what the decoders return was checked against its type; anything else raises `msgspec.DecodeError`.
Nothing is unpickled.
"""

from typing import Annotated, TypeAlias

import msgspec

from rljob_runtime.engines.protocol import FinishedText, Request
from rljob_runtime.net.messages import decode_typed
from rljob_runtime.samples import Generation, decoder, encode

MAX_MESSAGE_BYTES = 256 * 2**20


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Generate the responses to these requests. A request that the worker knows (it was sent again after a
    lost connection) is not begun a second time; if it has ended, its result is sent again."""

    requests: tuple[Request, ...]


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End these requests early; their results have what was generated so far."""

    request_ids: tuple[str, ...]


class Received(msgspec.Struct, frozen=True, tag="received"):
    """The results of these have arrived and need not be kept."""

    request_ids: tuple[str, ...]


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """From now on tell this connection how far requests are, every `seconds` while any runs."""

    seconds: Annotated[float, msgspec.Meta(ge=0.01, le=3600)]


class ProgressRead(msgspec.Struct, frozen=True, tag="progress read"):
    """The last `Progress` has arrived. The next one is not sent before, so that on a slow connection old ones
    do not pile up in front of results."""


class Learn(msgspec.Struct, frozen=True, tag="learn"):
    """Responses that finished elsewhere, to draft from. Not sent again after a lost connection."""

    texts: tuple[FinishedText, ...]


Order: TypeAlias = Submit | Abort | Received | Watch | ProgressRead | Learn


class ToWorker(msgspec.Struct, frozen=True):
    """A message to the worker."""

    token: str
    """The shared token where the transport does not authenticate; else empty."""
    body: Order


class Failure(msgspec.Struct, frozen=True):
    """A request that ended without a generation."""

    request_id: str
    why: str
    died: bool
    """Whether the engine is gone, rather than this request at fault."""


class Results(msgspec.Struct, frozen=True, tag="results"):
    """Requests that have ended."""

    generations: tuple[Generation, ...]
    failures: tuple[Failure, ...]


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far running requests are."""

    tokens: dict[str, Annotated[int, msgspec.Meta(ge=0)]]
    """Tokens generated since its submit, by request id."""
    prefilled: Annotated[int, msgspec.Meta(ge=0)] = 0
    """As in `protocol.ProgressListener`."""


class Usage(msgspec.Struct, frozen=True, tag="usage"):
    """What the worker's processes used in the last `seconds`, and what its engine counted in them."""

    seconds: Annotated[float, msgspec.Meta(ge=0)]
    values: dict[str, float]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A message was not read, or its sender is not let in."""

    why: str


FromWorker: TypeAlias = Results | Progress | Usage | Refused

_to_worker = decoder(ToWorker)
_from_worker = decoder(FromWorker)


def encode_message(message: ToWorker | FromWorker) -> bytes:
    return encode(message)


def decode_to_worker(frames: list[bytes]) -> ToWorker:
    """A message to the worker; raises `msgspec.DecodeError` for anything else."""
    message: ToWorker = decode_typed(_to_worker, _only(frames))
    return message


def decode_from_worker(frames: list[bytes]) -> FromWorker:
    """A message from the worker; raises `msgspec.DecodeError` for anything else."""
    message: FromWorker = decode_typed(_from_worker, _only(frames))
    return message


def _only(frames: list[bytes]) -> bytes:
    if len(frames) != 1:
        raise msgspec.DecodeError(f"{len(frames)} frames, not 1")
    return frames[0]
