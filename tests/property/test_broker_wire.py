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
    assert all(len(frame) <= LARGE or frame in groups for frame in frames)
    assert len(frames) <= 1 + 2 * sum(sizes) // LARGE, "small groups share a frame"


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
        request, groups = wire.decode_request([damaged, payload])
        assert request.number >= 1 and 1 <= len(request.client) <= 200
        if isinstance(request.body, wire.Put):
            assert len(groups) == len(request.body.uids) == len(request.body.samples) == 2
            assert min(request.body.uids) >= 0 and min(request.body.samples) >= 1


@given(st.lists(st.binary(max_size=40), max_size=3))
def test_noise_is_refused(frames):
    for decode in (wire.decode_request, wire.decode_reply):
        with pytest.raises(msgspec.DecodeError):
            decode(frames)
