"""What a worker says of a reward function that fails."""

import json
from pathlib import Path

import pytest

from rljob_runtime.rewards.load import load_reward
from rljob_runtime.rewards.worker import in_words
from tests.support.runtime.reward_inputs import reward_input

FUNCTIONS = """
import json
import helper_of_judge

def direct(sample):
    return {}["gold"]

def through_a_library(sample):
    return json.loads("{")

def through_a_neighbour(sample):
    return helper_of_judge.deeper()

def long(sample):
    raise ValueError("x" * 5000)

def wordless(sample):
    assert sample is None

def no_such_method(sample):
    return sample.respose

def half_of_a_character(sample):
    raise ValueError("boom \\ud800")

class Mute(Exception):
    def __str__(self):
        raise ValueError

def mute(sample):
    raise Mute
"""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("direct", "KeyError: 'gold' (judge_words.py:6, in direct)"),
        (
            "through_a_library",
            "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) "
            "(judge_words.py:9, in through_a_library)",
        ),
        ("through_a_neighbour", "ZeroDivisionError: division by zero (helper_of_judge.py:2, in deeper)"),
        ("long", f"ValueError: {'x' * 299}… (judge_words.py:15, in long)"),
        ("wordless", "AssertionError (judge_words.py:18, in wordless)"),
        (
            "no_such_method",
            "AttributeError: 'RewardInput' object has no attribute 'respose' "
            "(judge_words.py:21, in no_such_method)",
        ),
        ("half_of_a_character", r"ValueError: boom \ud800 (judge_words.py:24, in half_of_a_character)"),
        ("mute", "Mute: (its message cannot be read) (judge_words.py:31, in mute)"),
    ],
)
def test_an_error_of_a_reward_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, words: str
) -> None:
    (tmp_path / "judge_words.py").write_text(FUNCTIONS)
    (tmp_path / "helper_of_judge.py").write_text("def deeper():\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    score = load_reward(f"judge_words:{function}", {})
    with pytest.raises(Exception) as caught:
        score(reward_input())
    assert in_words(caught.value) == words


def test_an_error_that_comes_from_no_function_of_the_user() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("")
    assert in_words(caught.value).startswith("JSONDecodeError: Expecting value")
