"""Messages between the reward pool and its workers: length-prefixed MessagePack frames on a socket.

Guarantees: a frame that is not what it should be raises `msgspec.DecodeError`; nothing is unpickled.
"""

import msgspec

from rljob_runtime.rewards import RewardInput
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.load import Refusal
from rljob_runtime.samples import decoder, encode

HEADER_BYTES = 4
MAX_FRAME_BYTES = 1 << 30
"""More is no sample: a length beyond it means that the stream is out of step."""


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """First frame to a worker: what it runs."""

    calls: tuple[FunctionCall, ...]
    search_path: tuple[str, ...]


class Task(msgspec.Struct, frozen=True, tag="task"):
    """One sample to score."""

    number: int
    """Unique in the pool."""
    sample: RewardInput


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """First frame from a worker: it has its functions, or why not."""

    refusal: Refusal | None = None


class Result(msgspec.Struct, frozen=True, tag="result"):
    """The score of a task. Results come in the order of the tasks."""

    number: int
    value: float
    failure: str | None
    seconds: float
    """Time in the functions."""
    parts: dict[str, float] = {}
    metrics: dict[str, float | None] = {}
    complaints: dict[str, str] = {}
    failure_outline: str | None = None
    """As in `Score`."""


to_worker = decoder(Setup | Task)
from_worker = decoder(Ready | Result)


def frame(message: msgspec.Struct) -> bytes:
    """The message with its length in front (4 bytes, little-endian)."""
    body = encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a sample of {len(body)} bytes is above the limit of {MAX_FRAME_BYTES} bytes")
    return len(body).to_bytes(HEADER_BYTES, "little") + body


class FrameBuffer:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete with `data`. Raises `msgspec.DecodeError` for an impossible length."""
        self._data += data
        frames = []
        position = 0
        while len(self._data) - position >= HEADER_BYTES:
            start = position + HEADER_BYTES
            size = int.from_bytes(self._data[position:start], "little")
            if size > MAX_FRAME_BYTES:
                raise msgspec.DecodeError(f"frame of {size} bytes")
            if len(self._data) - start < size:
                break
            frames.append(bytes(self._data[start : start + size]))
            position = start + size
        # Once for all frames: each deletion moves what is behind it.
        del self._data[:position]
        return frames
