"""Rewards: user functions in worker processes, with a time limit."""

from typing import Any

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
    fields: dict[str, Any] = {}
    """Further fields of the row, by the names in data.rewardFields; None where the row lacks one."""
    source: str = ""
    """Which of data.sources the prompt is from, by its name; empty where there are none."""


class RewardResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a reward function may return where a number does not say it all. A dict with the same keys means
    the same."""

    reward: float | None = None
    """The reward, between -1e6 and 1e6; None: the sum of the parts."""
    parts: dict[str, float] = {}
    """What the reward is made of, by name; each between -1e6 and 1e6."""
    metrics: dict[str, float | None] = {}
    """What else is worth a curve, by name, and is no part of the reward; None: it does not apply to this
    response, which is then left out of its mean."""


class Score(msgspec.Struct, frozen=True):
    """What became of a response."""

    value: float
    """The reward; 0 where `failure` is set."""
    failure: str | None = None
    """`timeout after 10 s`, `reward worker died (signal SIGSEGV)`, or the function's own words:
    `error: ValueError: no answer in it (judge.py:12, in score)`; of its teacher,
    `teacher: teacher.models:8000 answered 503`."""
    seconds: float = 0.0
    """Time in the reward function."""
    parts: dict[str, float] = {}
    """What the reward is made of, by name; empty where `failure` is set."""
    metrics: dict[str, float | None] = {}
    """What else the function measured; None where it does not apply to the response."""
    complaints: dict[str, str] = {}
    """Parts and metrics that this response lacks, each with why: `metrics.depth`: `returned nan, ...`."""
    waited: float = 0.0
    """Seconds in which the response waited for a worker; 0 where that is not known."""
    teacher_log_probs: np.ndarray | None = None
    """Shape (response length,), float32: log-probabilities under a teacher that a server has; None where
    there is none, or `failure` is set."""
    teacher_seconds: float = 0.0
    """Seconds until the teacher had answered; 0 without one."""
    failure_outline: str | None = None
    """`failure` without the message of the function's exception, which may have text of the response; None
    where it has none."""

    @property
    def told_failure(self) -> str | None:
        """What of `failure` may stand outside of the run's folder."""
        return self.failure if self.failure_outline is None else self.failure_outline


TEACHER = "teacher"
"""How the failure of a response begins that its teacher has not scored."""
WORKER_DIED = "reward worker died"
"""How the failure of a response begins whose worker ended, or answered what is no answer."""
_NOT_ERRORS = ("timeout", WORKER_DIED, "cancelled", TEACHER)
"""How failures begin that are not the function's own; all others are errors of the function."""


def failure_reason(failure: str) -> str:
    """The reason that a failure is counted under: timeout, reward worker died, cancelled, teacher, error."""
    return next((reason for reason in _NOT_ERRORS if failure.startswith(reason)), "error")
