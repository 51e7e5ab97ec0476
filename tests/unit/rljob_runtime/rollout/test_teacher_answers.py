"""What a server that has a teacher is asked, and which of its answers are of use."""

import json
from typing import Any

import numpy as np
import pytest

from rljob_runtime.rollout.teacher_answers import (
    ServedModel,
    UnusableAnswer,
    completion_request,
    differing_tokens,
    log_probs_of,
    models_of,
    most_bytes,
    refusal_of,
    tokenize_request,
    tokens_of,
)

TOKENS = np.array([5, 6, 7, 5], np.int32)
"""A prompt of one token and its response."""


def entry(token: int, log_prob: Any) -> dict[str, Any]:
    return {str(token): {"logprob": log_prob, "rank": 3, "decoded_token": "é"}}


def answer(*entries: Any, **more: Any) -> bytes:
    """As vLLM writes it; `more`: beside the log-probabilities of the prompt's tokens."""
    choice = {"index": 0, "text": "x", "prompt_logprobs": list(entries), **more}
    return json.dumps({"id": "cmpl-1", "choices": [choice], "usage": {"total_tokens": 5}}).encode()


GOOD = [None, entry(6, -0.5), entry(7, -12.25), entry(5, 0.0)]


def test_a_request_has_the_prompt_as_numbers_and_asks_for_no_others_than_its_own_tokens() -> None:
    assert json.loads(completion_request("m", TOKENS)) == {
        "model": "m", "prompt": [5, 6, 7, 5], "max_tokens": 1, "prompt_logprobs": 0,
    }  # fmt: skip
    asked = json.loads(tokenize_request("m", "aé"))
    assert asked == {"model": "m", "prompt": "aé", "add_special_tokens": False}


@pytest.mark.parametrize(("prompt_length", "expected"), [(1, [-0.5, -12.25, 0.0]), (3, [0.0]), (4, [])])
def test_a_response_s_tokens_have_one_each(prompt_length: int, expected: list[float]) -> None:
    found = log_probs_of(answer(*GOOD), TOKENS, prompt_length)
    assert found.dtype == np.float32 and found.tolist() == expected


def test_the_most_likely_token_beside_it_is_not_taken() -> None:
    both = entry(9, -0.1) | entry(6, -0.5)
    assert log_probs_of(answer(None, both, *GOOD[2:]), TOKENS, 1)[0] == -0.5


def test_rounding_above_0_is_cut_off() -> None:
    assert log_probs_of(answer(None, entry(6, 1e-4), *GOOD[2:]), TOKENS, 1)[0] == 0


UNUSABLE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "cannot be read"),
    "no JSON": (b"<html>busy</html>", "cannot be read"),
    "no UTF-8": (answer(*GOOD).replace(b'"6"', b'"\xff"'), "cannot be read"),
    "nested without end": (b'{"x": ' + b"[" * 200_000, "cannot be read"),
    "cut off": (answer(*GOOD)[:-5], "cannot be read"),
    "another shape": (b'{"choices": [{"prompt_logprobs": {"5": 1}}]}', "cannot be read"),
    "a text for a number": (answer(None, entry(6, "-0.5"), *GOOD[2:]), "cannot be read"),
    "no choice": (b'{"choices": []}', "has 0 choices"),
    "two choices": (b'{"choices": [{}, {}]}', "has 2 choices"),
    "no log-probabilities": (b'{"choices": [{"text": "x"}]}', "has no prompt_logprobs: only vLLM's"),
    "one too few": (answer(*GOOD[:-1]), "has log-probabilities of 3 tokens, and was asked for 4"),
    "one too many": (answer(*GOOD, entry(1, -1.0)), "has log-probabilities of 5 tokens"),
    "null for a token": (answer(None, None, *GOOD[2:]), "has no log-probability of token 1, which is 6"),
    "another token": (answer(None, entry(9, -0.5), *GOOD[2:]), "has no log-probability of token 1"),
    "a null value": (answer(*GOOD[:3], entry(5, None)), "has no log-probability of token 3, which is 5"),
    "minus infinity": (answer(None, entry(6, -9999.0), *GOOD[2:]), "has a probability of 0 for token 1"),
    "an overflow": (
        answer(None, entry(6, -1.0), *GOOD[2:]).replace(b"-1.0", b"-1e400"),
        "cannot be read",
    ),
    "a logit": (answer(None, entry(6, 3.5), *GOOD[2:]), "has 3.5 for token 1, which is no log-probability"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_answer_of_no_use_says_what_is_wrong(name: str) -> None:
    given, words = UNUSABLE[name]
    with pytest.raises(UnusableAnswer) as raised:
        log_probs_of(given, TOKENS, 1)
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_what_is_wrong_with_the_prompt_alone_does_not_matter() -> None:
    assert log_probs_of(answer(None, None, *GOOD[2:]), TOKENS, 2).tolist() == [-12.25, 0.0]


def test_a_long_answer_has_room() -> None:
    tokens = np.zeros(5000, np.int32)
    longest = {"151935": {"logprob": -12.345678901234567, "rank": 151935, "decoded_token": "\U0001f600" * 16}}
    assert len(answer(*[longest] * 5000)) < most_bytes(len(tokens))


def test_models_and_tokens() -> None:
    listed = {"object": "list", "data": [{"id": "a", "max_model_len": 32}, {"id": "b", "owned_by": "me"}]}
    assert models_of(json.dumps(listed).encode()) == [ServedModel("a", 32), ServedModel("b")]
    assert tokens_of(b'{"count": 2, "max_model_len": 32, "tokens": [4, 5]}') == [4, 5]
    for reader in (models_of, tokens_of):
        with pytest.raises(UnusableAnswer, match="cannot be read"):
            reader(b"[]")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            b'{"error": {"message": "Token id 99 is\\n out of vocabulary", "code": 400}}',
            "Token id 99 is out of",
        ),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b"<html>", ""),
        (b'{"detail": "Not Found"}', ""),
        (b'{"error": "\xff"}', ""),
    ],
)
def test_what_a_server_says_of_what_it_refuses(given: bytes, words: str) -> None:
    assert refusal_of(given).startswith(words) and bool(words) == bool(refusal_of(given))
    assert len(refusal_of(json.dumps({"error": "x" * 5000}).encode())) == 200


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ([1, 2], [1, 2], None),
        ([], [], None),
        ([1, 2, 3], [1, 5, 3], "token 1 is 2 of 3 by the policy's tokenizer, and 5 of 3 there"),
        ([1, 2], [1], "token 1 is 2 of 2 by the policy's tokenizer, and none of 1 there"),
        ([1], [1, 7], "token 1 is none of 1 by the policy's tokenizer, and 7 of 2 there"),
    ],
)
def test_tokens_that_differ(ours: list[int], theirs: list[int], words: str | None) -> None:
    assert differing_tokens(ours, theirs) == words
