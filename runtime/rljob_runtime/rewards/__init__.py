"""Rewards: user functions in worker processes, with a time limit."""

import msgspec
import numpy as np


class RewardInput(msgspec.Struct, frozen=True):
    """What a reward function sees of one response."""

    prompt: str
    response: str
    """Text of the response, without the stop token."""
    answer: str | None
    """Reference answer from the data, if there is one."""
    prompt_tokens: np.ndarray
    """Shape (prompt length,), int32."""
    response_tokens: np.ndarray
    """Shape (response length,), int32; includes the stop token."""
    finished: bool
    """True when the response ended with a stop token, False when it hit its length limit."""


class Score(msgspec.Struct, frozen=True):
    """What became of a response."""

    value: float
    """The reward; 0 where `failure` is set."""
    failure: str | None = None
    """`timeout after 10 s`, `reward worker died (signal SIGSEGV)`, or the function's own words:
    `error: ValueError: no answer in it (judge.py:12, in score)`."""
    seconds: float = 0.0
    """Time in the reward function."""


_NOT_ERRORS = ("timeout", "reward worker died", "cancelled")
"""How failures begin that are not the function's own; all others are errors of the function."""


def failure_reason(failure: str) -> str:
    """The reason that a failure is counted under: timeout, reward worker died, cancelled, error."""
    return next((reason for reason in _NOT_ERRORS if failure.startswith(reason)), "error")
