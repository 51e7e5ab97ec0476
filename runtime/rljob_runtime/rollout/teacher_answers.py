"""What is asked of a server that has a teacher, and what its answers must be.

Guarantees: from an answer comes one finite log-probability for each token of the response, of that very
token, or `UnusableAnswer` with what is wrong; nothing is made up for a token that has none. Pure.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np

from rljob_runtime.net.messages import decode_typed
from rljob_runtime.samples import LogProbs, Tokens

T = TypeVar("T")

_ANSWER_BYTES = 64 * 1024
"""Room for what an answer has beside its tokens."""
_TOKEN_BYTES = 512
"""Room for a token of an answer: its number, its text, and a log-probability with its rank."""
_NONE = -9999.0
"""What vLLM writes for minus infinity, which JSON does not have."""
_ROUNDING = 1e-3
"""A log-probability may be above 0 by so much: servers may compute in few digits."""


class UnusableAnswer(ValueError):
    """An answer has not what was asked for; the message says what it has."""


class ServedModel(msgspec.Struct, frozen=True):
    """A model that the server has."""

    id: str
    max_model_len: int | None = None
    """Most tokens of a prompt and what is generated; None where the server does not tell."""


class _Models(msgspec.Struct, frozen=True):
    data: list[ServedModel]


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


class _LogProb(msgspec.Struct, frozen=True):
    logprob: float | None


class _Choice(msgspec.Struct, frozen=True):
    prompt_logprobs: list[dict[str, _LogProb] | None] | None = None


class _Completion(msgspec.Struct, frozen=True):
    choices: list[_Choice]


class _Error(msgspec.Struct, frozen=True):
    message: str


class _Refusal(msgspec.Struct, frozen=True):
    """An error as the OpenAI interface has it; servers in front of vLLM have others."""

    error: _Error | str


_models = msgspec.json.Decoder(_Models)
_tokens = msgspec.json.Decoder(_Tokens)
_completion = msgspec.json.Decoder(_Completion)
_refusal = msgspec.json.Decoder(_Refusal)


def completion_request(model: str, tokens: Tokens) -> bytes:
    """The body of a request for the log-probabilities of `tokens`, shape (length,), as a prompt. A server
    generates a token at least, which nobody reads."""
    asked = {"model": model, "prompt": tokens.tolist(), "max_tokens": 1, "prompt_logprobs": 0}
    return msgspec.json.encode(asked)


def tokenize_request(model: str, text: str) -> bytes:
    """The body of a request for the tokens of a text, without any around it."""
    return msgspec.json.encode({"model": model, "prompt": text, "add_special_tokens": False})


def most_bytes(tokens: int) -> int:
    """Longest answer to a request with so many tokens that is read."""
    return _ANSWER_BYTES + _TOKEN_BYTES * tokens


def log_probs_of(answer: bytes, tokens: Tokens, prompt_length: int) -> LogProbs:
    """Log-probabilities of the response, shape (length - prompt_length,), from the answer for `tokens`: the
    prompt and its response. Raises `UnusableAnswer`."""
    found = _read(_completion, answer)
    if len(found.choices) != 1:
        raise UnusableAnswer(f"has {len(found.choices)} choices, and one was asked for")
    listed = found.choices[0].prompt_logprobs
    if listed is None:
        raise UnusableAnswer("has no prompt_logprobs: only vLLM's servers give them")
    if len(listed) != len(tokens):
        raise UnusableAnswer(
            f"has log-probabilities of {len(listed)} tokens, and was asked for {len(tokens)}"
        )
    places = range(prompt_length, len(tokens))
    return np.array([_log_prob(listed[at], int(tokens[at]), at) for at in places], dtype=np.float32)


def models_of(answer: bytes) -> list[ServedModel]:
    """The models that a server lists. Raises `UnusableAnswer`."""
    return _read(_models, answer).data


def tokens_of(answer: bytes) -> list[int]:
    """The tokens of a text. Raises `UnusableAnswer`."""
    return _read(_tokens, answer).tokens


def refusal_of(answer: bytes) -> str:
    """What a server says of a request that it refuses, in one line of at most 200 characters; empty where it
    says nothing that can be read."""
    try:
        said = decode_typed(_refusal, answer).error
    except msgspec.DecodeError:
        return ""
    return " ".join((said if isinstance(said, str) else said.message).split())[:200]


def differing_tokens(ours: Sequence[int], theirs: Sequence[int]) -> str | None:
    """Where the server's tokens of a text begin to differ from the policy's; None where they are the same."""
    if list(ours) == list(theirs):
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
    one, other = (f"{each[at]}" if at < len(each) else "none" for each in (ours, theirs))
    return f"token {at} is {one} of {len(ours)} by the policy's tokenizer, and {other} of {len(theirs)} there"


def _log_prob(entry: dict[str, _LogProb] | None, token: int, at: int) -> float:
    found = entry.get(str(token)) if entry is not None else None
    value = found.logprob if found is not None else None
    if value is None:
        raise UnusableAnswer(f"has no log-probability of token {at}, which is {token}")
    if not math.isfinite(value) or value <= _NONE:
        raise UnusableAnswer(f"has a probability of 0 for token {at}, which is {token}")
    if value > _ROUNDING:
        raise UnusableAnswer(
            f"has {value:g} for token {at}, which is no log-probability: the server needs "
            "--logprobs-mode raw_logprobs, which is its default"
        )
    return min(value, 0.0)


def _read(decoder: "msgspec.json.Decoder[T]", answer: bytes) -> T:
    try:
        return decode_typed(decoder, answer)
    except msgspec.DecodeError as error:
        raise UnusableAnswer(f"cannot be read: {error}") from error
