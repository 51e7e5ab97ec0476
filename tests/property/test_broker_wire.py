"""The queue's messages: what is packed comes out again, and nothing else does."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.queue import wire

LARGE = wire.FRAME_BYTES
SIZES = st.lists(st.sampled_from([0, 1, 7, LARGE // 3, LARGE - 1, LARGE, LARGE + 1]), max_size=8)


def groups_of(sizes):
    return [bytes([index % 256]) * size for index, size in enumerate(sizes)]


@given(SIZES)
def test_packed_groups_come_out_again(sizes):
    groups = groups_of(sizes)
    frames = wire.pack(groups)
    assert wire.unpack(sizes, [memoryview(frame) for frame in frames]) == groups
    assert all(len(frame) == LARGE for frame in frames[:-1]) and all(map(len, frames))
    assert len(frames) == -(-sum(sizes) // LARGE), "small groups share a frame, large ones have several"


def reply_of(groups):
    """The messages of an answer with these groups, as they arrive."""
    body = wire.Groups(tuple(range(len(groups))), (1,) * len(groups), tuple(map(len, groups)), 0)

    def head(part, parts):
        return wire.encode(wire.Reply(7, part or body, parts))

    return [[memoryview(frame) for frame in message] for message in wire.messages(head, groups)]


def received(messages):
    """What a client makes of messages: the groups of the last one, None where parts are missing."""
    parts = wire.Parts()
    for message in messages:
        reply, payload = wire.decode_reply(message)
        if isinstance(reply.body, wire.Part):
            parts.take(reply.body.index, payload[0])
    whole = parts.whole(reply.parts, payload)
    return None if whole is None else wire.unpack_groups(reply.body, whole)


@given(SIZES)
def test_a_message_in_parts_arrives_whole(sizes):
    assert received(reply_of(groups_of(sizes))) == groups_of(sizes)


@given(SIZES.filter(lambda sizes: sum(sizes) > LARGE), st.data())
def test_what_was_lost_with_a_connection_is_noticed_and_made_good(sizes, data):
    """Messages before some point were lost, or those between two points; then all of it is sent again."""
    messages = reply_of(groups_of(sizes))
    first = data.draw(st.integers(0, len(messages) - 2))
    after = data.draw(st.integers(first + 1, len(messages) - 1))
    broken = [*messages[:first], *messages[after:]]
    assert received(broken) is None
    assert received([*broken[:-1], *messages]) == groups_of(sizes)


@given(SIZES.filter(any), st.data())
def test_sizes_that_do_not_fit_the_payload_are_refused(sizes, data):
    frames = wire.pack(groups_of(sizes))
    index = data.draw(st.integers(0, len(sizes) - 1))
    wrong = list(sizes)
    wrong[index] += data.draw(st.sampled_from([-1, 1])) if wrong[index] else 1
    with pytest.raises(msgspec.DecodeError, match="than the groups in them"):
        wire.unpack(wrong, frames)


GOOD = wire.encode(wire.Request("client", "token", 3, 1, wire.Put((1, 2), (4, 4), (1, 1))))


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.binary(max_size=3))
def test_a_damaged_message_is_refused_or_still_within_bounds(position, value, payload):
    damaged = GOOD[:position] + bytes([value]) + GOOD[position + 1 :]
    with contextlib.suppress(msgspec.DecodeError):
        request, frames = wire.decode_request([damaged, payload])
        groups = wire.unpack_groups(request.body, frames)
        assert request.number >= 1 and 1 <= len(request.client) <= 200
        if isinstance(request.body, wire.Put):
            assert len(groups) == len(request.body.uids) == len(request.body.samples) == 2
            assert min(request.body.uids) >= 0 and min(request.body.samples) >= 1


@given(st.lists(st.binary(max_size=40), max_size=3))
def test_noise_is_refused(frames):
    for decode in (wire.decode_request, wire.decode_reply):
        with pytest.raises(msgspec.DecodeError):
            decode(frames)
