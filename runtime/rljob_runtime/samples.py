"""The data that moves through a job, and its wire format.

Guarantees: token ids are int32 arrays and log-probabilities float32 arrays, never lists of boxed numbers;
what `decode_group` returns was checked against its type (a malformed frame raises `msgspec.DecodeError`);
nothing is ever unpickled.
"""

from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = NDArray[np.int32]
LogProbs: TypeAlias = NDArray[np.float32]

FinishReason = Literal["stop", "length", "abort"]
"""Ended by a stop token, by the most tokens that were asked for, or by an abort."""


class Prompt(msgspec.Struct, frozen=True):
    """One prompt of the job's endless, ordered sequence of prompts."""

    uid: int
    """Position in that sequence, from 0: the identity of the group that grows from it."""
    epoch: int
    row: int
    """Row of the data set."""
    tokens: np.ndarray
    """Shape (prompt length,), int32."""
    text: str = ""
    answer: str | None = None
    fields: dict[str, Any] = {}
    """Further fields of the row, for the reward."""
    source: str = ""
    """Which of data.sources it is from; empty where there are none."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, end) of a response were sampled from the weights of `version`."""

    version: int
    start: int
    end: int


class Timing(msgspec.Struct, frozen=True):
    """What the time of a request on its engine was made of, from its submit to its end. In seconds; together
    they are all of it."""

    queued: float = 0.0
    """It waited for the engine to begin with it, or to go on with it after a pause."""
    prefill: float = 0.0
    """From there to its first token: the prompt, and what earlier attempts had generated, was computed."""
    decode: float = 0.0
    """It was generated, token by token."""
    paused: float = 0.0
    """The engine stood still for new weights."""
    preempted: float = 0.0
    """It waited without its KV cache, which the engine had dropped for want of room."""
    recomputed: float = 0.0
    """That cache, or the one of the weights before a pause, was computed anew."""
    preemptions: int = 0
    """How often the engine dropped its KV cache for want of room."""


class Generation(msgspec.Struct, frozen=True):
    """What an engine made of one request."""

    request_id: str
    tokens: np.ndarray
    """Shape (response length,), int32; includes the stop token."""
    log_probs: np.ndarray
    """Shape (response length,), float32: log-probability of each token under the distribution it was
    sampled from (after temperature, top-p, top-k)."""
    spans: tuple[Span, ...]
    """Contiguous, ascending, covering all tokens."""
    finish: FinishReason
    timing: Timing | None = None
    """Where its time went; None where the engine does not tell."""


class Sample(msgspec.Struct, frozen=True):
    """A finished response with its reward."""

    tokens: np.ndarray
    """Shape (response length,), int32; includes the stop token."""
    log_probs: np.ndarray
    """Shape (response length,), float32."""
    spans: tuple[Span, ...]
    finish: FinishReason
    reward: float
    """Score with all shaping; 0 where `failure` is set."""
    failure: str | None = None
    """Why there is no reward ("timeout", "error: ..."); such a sample is left out of the loss and of its
    group's mean."""
    engine: str = ""
    """Name of the engine that finished it."""
    seconds: float = 0.0
    """From submission to the last token."""
    reward_parts: dict[str, float] = {}
    """What the reward is made of, by name; empty where it is one number alone."""
    reward_metrics: dict[str, float | None] = {}
    """What else the reward function measured; None where it does not apply."""
    reward_values_failed: int = 0
    """Parts and metrics that it lacks: not returned though others have them, no numbers, or too many."""
    teacher_log_probs: np.ndarray | None = None
    """Shape (response length,), float32: log-probability of each token under a teacher that a server has.
    None where the job has no such teacher, and where `failure` is set."""


class Group(msgspec.Struct, frozen=True):
    """All responses to one prompt: the unit that is queued, leased, trained and acknowledged."""

    uid: int
    epoch: int
    row: int
    prompt: np.ndarray
    """Shape (prompt length,), int32."""
    samples: tuple[Sample, ...]
    dispatch_version: int
    """Weight version at which the group was dispatched: no token of it is older."""


_CODES = {"<i4": 1, "<f4": 2}
"""MessagePack extension code of each element type."""


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        code = _CODES.get(value.dtype.str)
        if code is None or value.ndim != 1:
            raise TypeError(f"cannot encode an array of {value.dtype} with {value.ndim} dimensions")
        return msgspec.msgpack.Ext(code, value.tobytes())
    raise TypeError(f"cannot encode {type(value).__name__}")


def _decode_array(code: int, data: memoryview) -> Any:
    # Elements of both types have 4 bytes. The array is a view of the frame, which is not copied.
    if code in _CODES.values() and len(data) % 4 == 0:
        return np.frombuffer(data, dtype="<i4" if code == _CODES["<i4"] else "<f4")
    raise msgspec.DecodeError(f"unknown extension {code} of {len(data)} bytes")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_group_decoder = msgspec.msgpack.Decoder(Group, ext_hook=_decode_array)


def encode(value: msgspec.Struct) -> bytes:
    """The wire form of a `Prompt`, `Generation`, `Group`, or a struct that holds them."""
    return _encoder.encode(value)


def decode_group(frame: bytes | memoryview) -> Group:
    """A `Group` from its wire form; raises `msgspec.DecodeError` for anything else."""
    try:
        group = _group_decoder.decode(frame)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"a text is not UTF-8: {error}") from error
    _check_arrays(group)
    return group


def decoder(kind: Any) -> "msgspec.msgpack.Decoder[Any]":
    """A decoder for structs of type `kind` that may hold arrays."""
    return msgspec.msgpack.Decoder(kind, ext_hook=_decode_array)


def _check_arrays(group: Group) -> None:
    if group.prompt.dtype != np.int32:
        raise msgspec.DecodeError("prompt is not int32")
    for sample in group.samples:
        if sample.tokens.dtype != np.int32 or sample.log_probs.dtype != np.float32:
            raise msgspec.DecodeError("tokens must be int32 and log-probabilities float32")
        if len(sample.tokens) != len(sample.log_probs):
            raise msgspec.DecodeError(
                f"{len(sample.tokens)} tokens but {len(sample.log_probs)} log-probabilities"
            )
        taught = sample.teacher_log_probs
        if taught is not None and (taught.dtype != np.float32 or len(taught) != len(sample.tokens)):
            found = f"{len(taught)} log-probabilities of its teacher, {taught.dtype}"
            raise msgspec.DecodeError(f"{len(sample.tokens)} tokens but {found}")
        if not spans_cover(sample.spans, len(sample.tokens)):
            raise msgspec.DecodeError(f"version spans do not cover {len(sample.tokens)} tokens")


def spans_cover(spans: tuple[Span, ...], length: int) -> bool:
    """Whether spans are contiguous from 0 to `length` (no spans for length 0)."""
    position = 0
    for span in spans:
        if span.start != position or span.end <= span.start:
            return False
        position = span.end
    return position == length


def join_spans(left: tuple[Span, ...], right: tuple[Span, ...]) -> tuple[Span, ...]:
    """Spans of a response continued by another generation whose spans count from 0."""
    offset = left[-1].end if left else 0
    shifted = [Span(span.version, span.start + offset, span.end + offset) for span in right]
    # An attempt that went on with the same weights continues the last span.
    if left and shifted and left[-1].version == shifted[0].version:
        merged = Span(left[-1].version, left[-1].start, shifted[0].end)
        return (*left[:-1], merged, *shifted[1:])
    return (*left, *shifted)
