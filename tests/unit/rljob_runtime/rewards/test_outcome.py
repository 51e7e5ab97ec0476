"""What a reward function may return, and what each mistake says."""

from typing import Any

import numpy as np
import pytest

from rljob_runtime.rewards import RewardResult
from rljob_runtime.rewards.outcome import MOST_NAMES, Outcome, RewardFormError, combined, outcome_of


class Odd(int):
    """A number of a user's own that is none."""

    def __float__(self) -> float:
        raise ValueError("odd \ud800")


MANY = {f"part_{number}": 0.0 for number in range(MOST_NAMES + 1)}


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (0.5, Outcome(0.5)),
        (True, Outcome(1.0)),
        ({"reward": 2}, Outcome(2.0)),
        ({"parts": {"correct": 1, "format": 0.25}}, Outcome(1.25, {"correct": 1.0, "format": 0.25})),
        (
            {"reward": 0, "parts": {"correct": np.True_}, "metrics": {"steps": np.int64(3), "depth": None}},
            Outcome(0.0, {"correct": 1.0}, {"steps": 3.0, "depth": None}),
        ),
        ({"reward": 1.0, "parts": None, "metrics": {"tokens": 1e9}}, Outcome(1.0, {}, {"tokens": 1e9})),
        (RewardResult(parts={"a": 1.0, "b": -1.0}), Outcome(0.0, {"a": 1.0, "b": -1.0})),
        (RewardResult(reward=0.5, metrics={"x": 1}), Outcome(0.5, {}, {"x": 1.0})),
        # A number that cannot be used costs itself alone.
        (
            {"reward": 1.0, "parts": {"a": "high", "b": 1e7}, "metrics": {"x": float("nan")}},
            Outcome(
                1.0, {}, {},
                {
                    "parts.a": "returned str, not a number",
                    "parts.b": "returned 1e+07; a reward lies between -1e+06 and 1e+06: scale it",
                    "metrics.x": "returned nan, not a finite number",
                },
            ),
        ),
        (
            {"parts": {"a": 1.0}, "metrics": {"x": 10**400}},
            Outcome(1.0, {"a": 1.0}, {}, {"metrics.x": "int too large to convert to float"}),
        ),
        (
            {"reward": 1.0, "metrics": {"x": Odd()}},
            Outcome(1.0, {}, {}, {"metrics.x": "Odd raised ValueError"}),
        ),
    ],
)  # fmt: skip
def test_what_is_a_reward(returned: Any, expected: Outcome) -> None:
    assert outcome_of(returned) == expected


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({}, "returned neither a reward nor parts, whose sum it would be"),
        ({"metrics": {"x": 1.0}}, "returned neither a reward nor parts"),
        (
            {"rewrad": 1.0},
            r"returned the key 'rewrad'; the keys are reward, parts, metrics. Did you mean reward\?$",
        ),
        ({"correct": 1.0}, "returned the key 'correct'; .* What a reward is made of goes under parts$"),
        ({"parts": [1.0]}, "returned list as parts; it is a dict of numbers by their names"),
        ({"reward": 1.0, "metrics": 3}, "returned int as metrics; it is a dict"),
        ({"parts": {"a b": 1.0}}, "returned 'a b' among parts: a name has up to 48 letters"),
        ({"parts": {"a/b": 1.0}}, "returned 'a/b' among parts"),
        ({"reward": 1.0, "metrics": {3: 1.0}}, "returned '3' among metrics"),
        ({"reward": 1.0, "parts": {"x" * 49: 1.0}}, "among parts: a name has up to 48"),
        (
            {"parts": {"a": 1.0, "b": "high"}},
            "parts.b: returned str 'high', not a number; the reward is the sum",
        ),
        ({"reward": 1.0, "parts": MANY}, "returned 33 parts and metrics; there may be 32 together"),
    ],
)
def test_what_cannot_be_read(returned: Any, message: str) -> None:
    with pytest.raises(RewardFormError, match=message):
        outcome_of(returned)


QUOTED = "the response"


@pytest.mark.parametrize(
    ("returned", "unquoted"),
    [
        (QUOTED, "returned str, not a number"),
        ({"reward": QUOTED}, "returned str, not a number"),
        ({QUOTED: 1.0}, "returned another key; the keys are reward, parts, metrics."),
        ({"parts": {QUOTED: 1.0}}, "returned another name among parts: a name has up to 48 letters, "),
        ({"parts": {"a": QUOTED}}, "parts.a: returned str, not a number; the reward is the sum of the parts"),
        ({}, "returned neither a reward nor parts, whose sum it would be"),
    ],
)
def test_what_cannot_be_read_is_told_without_text_too(returned: Any, unquoted: str) -> None:
    with pytest.raises(RewardFormError) as error:
        outcome_of(returned)
    assert error.value.unquoted.startswith(unquoted) and QUOTED not in error.value.unquoted
    assert (QUOTED in str(error.value)) == (returned != {})


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"reward": float("nan"), "parts": {"a": 1.0}}, "returned nan, not a finite number"),
        (
            {"parts": {"a": 1.0, "b": None}},
            "parts.b: returned None, not a number; the reward is the sum of the parts",
        ),
        ({"parts": {"a": 1e6, "b": 1e6}}, r"returned 2e\+06; a reward lies between"),
        (None, "returned None, not a number"),
    ],
)
def test_a_reward_that_is_no_number(returned: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        outcome_of(returned)


def test_a_part_that_is_not_finite_may_be_for_one_response_alone() -> None:
    with pytest.raises(ValueError, match=r"parts.b: returned nan, not a finite number") as error:
        outcome_of({"parts": {"a": 1.0, "b": float("nan")}})
    assert not isinstance(error.value, RewardFormError)


def test_several_rewards_are_added_by_weight() -> None:
    correct = Outcome(1.0, {"units": 0.5}, {"steps": 3.0}, {"metrics.depth": "returned nan"})
    assert combined(
        [("correct", 2.0, correct), ("short", -0.5, Outcome(4.0)), ("seen", 0.0, Outcome(9.0))]
    ) == (
        Outcome(
            0.0,
            {"correct": 1.0, "correct/units": 0.5, "short": 4.0, "seen": 9.0},
            {"correct/steps": 3.0},
            {"metrics.correct/depth": "returned nan"},
        )
    )


def test_a_sum_is_a_reward_as_any_other() -> None:
    with pytest.raises(ValueError, match=r"returned 2e\+06; a reward lies between"):
        combined([("a", 1.0, Outcome(1e6)), ("b", 1.0, Outcome(1e6))])
    with pytest.raises(RewardFormError, match="returned 33 parts and metrics"):
        combined([("a", 1.0, Outcome(0.0, dict(list(MANY.items())[:32])))])
