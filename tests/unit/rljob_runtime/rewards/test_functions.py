"""The built-in rewards and the shaping of long responses."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from rljob_api.data import OverlongShaping
from rljob_runtime.rewards import RewardInput, math, tasks
from rljob_runtime.rewards.math import math_answer, reference_text
from rljob_runtime.rewards.outcome import LARGEST, to_number
from rljob_runtime.rewards.overlong import overlong_punishment


def sample(prompt: str, response: str, finished: bool = True, answer: str | None = None) -> RewardInput:
    """A response of one token per character, and the stop token if it is finished."""
    return RewardInput(
        prompt=prompt,
        response=response,
        answer=answer,
        prompt_tokens=np.zeros(len(prompt) + 2, np.int32),
        response_tokens=np.zeros(len(response) + int(finished), np.int32),
        finished=finished,
    )


@pytest.mark.parametrize(
    ("prompt", "response", "reward"),
    [
        ("abcd", "abcd", 1.0),
        ("abcd", "", 0.0),
        ("abcd", "ab", 0.5),
        ("abcd", "xbxd", 0.5),
        ("abcd", "bcda", 0.0),
        ("abcd", "abcdabcd", 0.92),
        ("abcd", "xxxxxx", -0.04),
        ("a", "a", 1.0),
    ],
)
def test_copy(prompt: str, response: str, reward: float) -> None:
    assert tasks.copy(sample(prompt, response)) == pytest.approx(reward)
    assert tasks.reverse(sample(prompt[::-1], response)) == pytest.approx(reward)


def test_copy_overrun_penalty_is_an_argument() -> None:
    assert tasks.copy(sample("ab", "abab"), overrun_penalty=0.25) == pytest.approx(0.5)


def test_mean_of_perfect_copies_is_one() -> None:
    prompts = ["abca", "b", "cabbage", "zz"]
    assert np.mean([tasks.copy(sample(prompt, prompt)) for prompt in prompts]) == 1.0


@pytest.mark.parametrize(
    ("prompt", "response", "times", "reward"),
    [
        ("aaaa", "aaaa", None, 1.0),
        ("aaaa", "aab", None, 0.5),
        ("a", "aaaaaaaa", 8, 1.0),
        ("a", "aaaabbbb", 8, 0.5),
        ("ba", "aabb", 4, 0.5),
        ("a", "aaa", 2, 0.98),
    ],
)
def test_repeat(prompt: str, response: str, times: int | None, reward: float) -> None:
    assert tasks.repeat(sample(prompt, response), times=times) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("prompt", "response", "finished", "reward"),
    [
        ("aaaa", "wxyz", True, 1.0),
        ("aaaa", "wx", True, 0.75),
        ("aaaa", "wxyzwx", True, 0.75),
        ("aaaa", "wxyz", False, 1.0),
        ("aaaa", "x" * 16, False, -0.5),
        ("aaaa", "", True, 0.5),
    ],
)
def test_count(prompt: str, response: str, finished: bool, reward: float) -> None:
    assert tasks.count(sample(prompt, response, finished)) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("reference", "response", "right"),
    [
        ("5", r"so \boxed{5}", True),
        ("5", r"so \boxed{6}", False),
        ("72", "He has 70 and then 72 apples.", True),
        ("Half of 48 is 24.\n#### 72", r"\boxed{72}", True),
        ("1,000", "the answer is 1000", True),
        (r"\frac{1}{2}", r"The answer is $0.5$", True),
        ("$\\frac{1}{2}$", r"\boxed{1/2}", True),
        (r"2\sqrt{3}", r"\boxed{2\sqrt{3}}", True),
        (r"2\sqrt{3}", r"\boxed{2}", False),
        ("(1,2)", r"$\boxed{(1,2)}$", True),
        ("(1,2)", r"$\boxed{(2,1)}$", False),
        ("x+1", r"\boxed{1+x}", True),
        ("5", r"\boxed{4} or \boxed{5}", False),
        ("5", "no idea", False),
        ("5", "", False),
        ("5", r"\boxed{" + "(" * 2000, False),
        ("5", r"\boxed{\frac{1}{0}}", False),
    ],
)
def test_math_answer(reference: str, response: str, right: bool) -> None:
    assert math_answer(sample("", response, answer=reference)) == (1.0 if right else 0.0)


def test_math_answer_values() -> None:
    assert math_answer(sample("", r"\boxed{3}", answer="4"), correct=2.0, wrong=-1.0) == -1.0
    assert math_answer(sample("", r"\boxed{4}", answer="4"), correct=2.0, wrong=-1.0) == 2.0


@pytest.mark.parametrize("answer", [None, "", "  ", "solution ####"])
def test_math_needs_a_reference(answer: str | None) -> None:
    with pytest.raises(ValueError, match="has no reference answer"):
        math_answer(sample("", r"\boxed{4}", answer=answer))


def test_math_reference_that_is_no_mathematics() -> None:
    with pytest.raises(ValueError, match="is no number or formula"):
        math_answer(sample("", r"\boxed{4}", answer=r"\boxed{}"))


def test_math_timeout_is_not_a_wrong_answer() -> None:
    slow = r"\boxed{\sum_{k=1}^{100000} \frac{1}{k^2+1}}"
    with pytest.raises(TimeoutError, match="longer than 1 s"):
        math_answer(sample("", slow, answer="5"), timeout_seconds=1)


def test_math_timeout_holds_where_one_interruption_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(*_: Any, **__: Any) -> None:
        while True:
            pass

    def stubborn(*_: Any, **__: Any) -> None:
        with suppress(BaseException):  # as Python does in a destructor
            spin()
        spin()

    monkeypatch.setattr(math, "verify", stubborn)
    with pytest.raises(TimeoutError, match="longer than 1 s"):
        math_answer(sample("", "4", answer="5"), timeout_seconds=1)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("5", "$5$"),
        ("a #### 1 #### 2 ", "$2$"),
        (r"\boxed{3}", r"\boxed{3}"),
        ("$x$", "$x$"),
        (r"\(x\)", r"\(x\)"),
    ],
)
def test_math_reference_text(answer: str, text: str) -> None:
    assert reference_text(answer) == text


@pytest.mark.parametrize(
    ("length", "factor", "punishment"),
    [
        (0, 1.0, 0.0),
        (80, 1.0, 0.0),
        (81, 1.0, -0.05),
        (90, 1.0, -0.5),
        (100, 1.0, -1.0),
        (100, 0.3, -0.3),
        (95, 0.0, 0.0),
    ],
)
def test_overlong(length: int, factor: float, punishment: float) -> None:
    shaping = OverlongShaping(buffer_tokens=20, penalty_factor=factor)
    assert overlong_punishment(length, 100, shaping) == pytest.approx(punishment)


def test_overlong_buffer_of_the_whole_length() -> None:
    assert overlong_punishment(5, 10, OverlongShaping(buffer_tokens=10)) == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("value", "number"), [(1, 1.0), (np.float32(0.5), 0.5), (np.True_, 1.0), (LARGEST, 1e6), (-LARGEST, -1e6)]
)
def test_what_counts_as_a_reward(value: object, number: float) -> None:
    assert to_number(value) == number


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1", "returned str '1', not a number"),
        (float("nan"), "returned nan, not a finite number"),
        (float("-inf"), "returned -inf, not a finite number"),
        (1e308, r"returned 1e\+308; a reward lies between -1e\+06 and 1e\+06: scale it"),
        (-1.0001e6, r"returned -1\.0001e\+06; a reward lies between"),
    ],
)
def test_what_is_no_reward(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_number(value)
