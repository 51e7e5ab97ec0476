"""What of a group decides how it is trained and described: everything but its tokens.

Guarantees: all ranks that have the outlines of a step's groups split it over themselves alike, and only the
tokens have to be sent, each to the one rank that trains it; what arrives is checked against its type. Pure.
"""

from collections.abc import Sequence

import msgspec

from rljob_runtime.net.messages import decode_typed
from rljob_runtime.samples import Group, Span


class GroupsMissing(RuntimeError):
    """Rank 0, which shares the step's groups out, did not get them from the queue."""


class SampleOutline(msgspec.Struct, frozen=True, array_like=True):
    """A response without its tokens."""

    length: int
    """Tokens."""
    spans: tuple[Span, ...]
    """As in `Sample`."""
    reward: float
    failed: bool
    """It has no reward, and is not trained."""
    reward_parts: dict[str, float] = {}
    """As in `Sample`, like the two that follow."""
    reward_metrics: dict[str, float | None] = {}
    reward_values_failed: int = 0
    cut_off: bool = False
    """It ended at the most tokens that a response may have."""


class GroupOutline(msgspec.Struct, frozen=True, array_like=True):
    """A group without its tokens."""

    uid: int
    row: int
    """Of the data set."""
    prompt_length: int
    """Tokens."""
    samples: tuple[SampleOutline, ...]


def outline_of(group: Group) -> GroupOutline:
    """The group's outline."""
    samples = tuple(
        SampleOutline(
            len(sample.tokens),
            sample.spans,
            sample.reward,
            sample.failure is not None,
            sample.reward_parts,
            sample.reward_metrics,
            sample.reward_values_failed,
            sample.finish == "length",
        )
        for sample in group.samples
    )
    return GroupOutline(group.uid, group.row, len(group.prompt), samples)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[GroupOutline, ...])


def encode_outlines(outlines: Sequence[GroupOutline]) -> bytes:
    """Their wire form: about 30 bytes for a response, and for each part and metric of its reward ten and its
    name."""
    return _encoder.encode(tuple(outlines))


def decode_outlines(data: bytes) -> tuple[GroupOutline, ...]:
    """Outlines from their wire form; raises `msgspec.DecodeError` for anything else."""
    return decode_typed(_decoder, data)
