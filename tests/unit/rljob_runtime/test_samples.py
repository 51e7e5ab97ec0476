"""What of a group arrives over a wire, and which groups are refused there."""

from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from rljob_runtime.samples import Group, Sample, Span, decode_group, encode

TOKENS = np.array([4, 5, 2], np.int32)
SAMPLE = Sample(TOKENS, np.array([-1, -2, -3], np.float32), (Span(0, 0, 3),), "stop", 1.0)
TAUGHT = np.array([-0.5, -1.5, -2.5], np.float32)


def group(**changes: Any) -> Group:
    return Group(7, 0, 7, TOKENS[:2], (replace(SAMPLE, **changes), SAMPLE), 0)


def test_what_a_teacher_said_arrives_bit_for_bit_and_is_absent_where_it_said_nothing() -> None:
    first, second = decode_group(encode(group(teacher_log_probs=TAUGHT))).samples
    assert first.teacher_log_probs is not None and first.teacher_log_probs.tobytes() == TAUGHT.tobytes()
    assert second.teacher_log_probs is None


def test_a_group_of_an_earlier_release_can_be_read() -> None:
    fields = msgspec.msgpack.decode(encode(group()))
    for sample in fields["samples"]:
        del sample["teacher_log_probs"]
    found = decode_group(msgspec.msgpack.encode(fields)).samples
    assert [each.teacher_log_probs for each in found] == [None, None]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (TAUGHT[:2], "3 tokens but 2 log-probabilities of its teacher, float32"),
        (TOKENS, "3 log-probabilities of its teacher, int32"),
    ],
)
def test_log_probabilities_that_do_not_fit_the_tokens_are_refused(said: Any, words: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=words):
        decode_group(encode(group(teacher_log_probs=said)))
