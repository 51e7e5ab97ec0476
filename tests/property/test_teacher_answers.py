"""Whatever a teacher's server answers: log-probabilities for all tokens of the response, or a refusal."""

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.rollout.teacher_answers import (
    UnusableAnswer,
    log_probs_of,
    models_of,
    most_bytes,
    refusal_of,
    tokens_of,
)

VALUES = st.none() | st.floats(-20, 0) | st.sampled_from([-9999.0, 0.5, "x", [], {}])
TOKENS = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, list[int], int]:
    """An answer that may be right, what it was asked for, and the prompt's length."""
    tokens = draw(TOKENS)
    listed: list[Any] = [None, *({str(token): {"logprob": draw(VALUES)}} for token in tokens[1:])]
    for _ in range(draw(st.integers(0, 2))):
        change = draw(st.sampled_from(["none", "other", "more", "fewer"]))
        at = draw(st.integers(0, len(listed) - 1)) if listed else 0
        if change == "more":
            listed.insert(at, {"0": {"logprob": -1.0}})
        elif listed and change == "fewer":
            del listed[at]
        elif listed:
            listed[at] = None if change == "none" else {"77": {"logprob": -1.0}}
    body = bytearray(json.dumps({"choices": [{"prompt_logprobs": listed}]}).encode())
    for _ in range(draw(st.integers(0, 2))):
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body), tokens, draw(st.integers(1, len(tokens)))


@given(answers())
def test_each_token_has_a_log_probability_or_the_answer_is_refused(
    case: tuple[bytes, list[int], int],
) -> None:
    body, tokens, prompt_length = case
    try:
        found = log_probs_of(body, np.array(tokens, np.int32), prompt_length)
    except UnusableAnswer as error:
        assert str(error) and "\n" not in str(error)
        return
    assert found.dtype == np.float32 and found.shape == (len(tokens) - prompt_length,)
    assert np.isfinite(found).all() and (found <= 0).all() and (found > -9999).all()
    assert len(body) < most_bytes(len(tokens))


@given(st.binary(max_size=64) | answers().map(lambda case: case[0]))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    for reader in (models_of, tokens_of):
        try:
            reader(body)
        except UnusableAnswer:
            continue
    assert len(refusal_of(body)) <= 200
