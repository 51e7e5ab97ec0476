"""What the ranks of a trainer are told of a step's groups, and what they get of them."""

import msgspec
import numpy as np
import pytest

from rljob_api.algorithm import Algorithm
from rljob_runtime.objective.advantages import estimator
from rljob_runtime.samples import Group, Sample, Span
from rljob_runtime.trainer import group_scatter
from rljob_runtime.trainer.batch import responses_of
from rljob_runtime.trainer.outline import decode_outlines, encode_outlines, outline_of
from tests.support.runtime.trainer_ranks import groups, made_up, taught

MADE = groups(5, seed=3)
OUTLINES = {group.uid: outline_of(group) for group in MADE}


def test_outlines_arrive_as_they_were() -> None:
    outlines = tuple(OUTLINES.values())
    assert decode_outlines(encode_outlines(outlines)) == outlines
    assert decode_outlines(encode_outlines(())) == ()
    for damaged in (b"", b"\xc1", encode_outlines(outlines)[:-1], msgspec.msgpack.encode([[1, 2, 3]])):
        with pytest.raises(msgspec.DecodeError):
            decode_outlines(damaged)


def test_an_outline_says_all_but_the_tokens() -> None:
    spans = (Span(2, 0, 1), Span(3, 1, 3))
    tokens, log_probs = np.arange(3, dtype=np.int32), np.zeros(3, np.float32)
    samples = (
        Sample(tokens, log_probs, spans, "stop", 0.5),
        Sample(tokens[:0], log_probs[:0], (), "abort", 0.0, failure="timeout after 10 s"),
    )
    outline = outline_of(Group(7, 0, 70, np.arange(4, dtype=np.int32), samples, 2))
    assert (outline.uid, outline.row, outline.prompt_length) == (7, 70, 4)
    assert [(each.length, each.spans, each.reward, each.failed) for each in outline.samples] == [
        (3, spans, 0.5, False),
        (0, (), 0.0, True),
    ]
    (response,) = responses_of([outline], estimator(Algorithm()))
    assert response.drawn_with(3).tolist() == [False, True, True]
    assert response.drawn_with(None).tolist() == [False] * 3


@pytest.mark.parametrize("with_teacher", [False, True])
@pytest.mark.parametrize("keys", [[], [(0, 0)], [(0, 1), (0, 2), (2, 0)], [(1, 2), (4, 0), (4, 2), (4, 3)]])
def test_contents_arrive_bit_for_bit(keys: list[group_scatter.Key], with_teacher: bool) -> None:
    by_uid = {group.uid: taught(group, made_up) for group in MADE}
    array = group_scatter._packed(keys, by_uid, with_teacher)
    assert len(array) == group_scatter._words(keys, OUTLINES, with_teacher), (
        "what the receiver makes room for"
    )
    found = group_scatter._unpacked(keys, OUTLINES, array, with_teacher)
    assert list(found) == keys
    for (uid, index), content in found.items():
        sample = by_uid[uid].samples[index]
        assert np.array_equal(content.prompt, by_uid[uid].prompt)
        assert np.array_equal(content.tokens, sample.tokens)
        assert content.log_probs.tobytes() == sample.log_probs.tobytes()
        if with_teacher:
            assert content.teacher is not None and sample.teacher_log_probs is not None
            assert content.teacher.tobytes() == sample.teacher_log_probs.tobytes()
        else:
            assert content.teacher is None
