"""What a worker says of a reward function that fails."""

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from rljob_runtime.own_functions import outline
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.frames import Task
from rljob_runtime.rewards.load import load_reward
from rljob_runtime.rewards.process import score_of
from rljob_runtime.rewards.worker import _score, in_words
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


RESPONSE = "Patient Jane Doe, born 1970"
READER = """
def score(sample):
    return float(sample.response)

def echo(sample):
    return sample.response
"""


@pytest.mark.parametrize(
    ("function", "name", "told"),
    [
        ("score", "", "error: ValueError (judge_reader.py:3, in score)"),
        ("score", "form", "error: ValueError (judge_reader.py:3, in score) [reward form]"),
        ("echo", "", "error: RewardFormError: returned str, not a number"),
    ],
)
def test_what_is_told_of_a_failure_has_no_text_of_the_response(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    function: str,
    name: str,
    told: str,
) -> None:
    (tmp_path / "judge_reader.py").write_text(READER)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = f"judge_reader:{function}"
    functions = [(FunctionCall(path, name=name), load_reward(path, {}))]
    sample = msgspec.structs.replace(reward_input(), response=RESPONSE)
    score = score_of(_score(functions, Task(0, sample), Counter()), 0.0)
    assert score.told_failure == told
    assert RESPONSE in str(score.failure), "samples.jsonl has it"
    assert RESPONSE in capsys.readouterr().err, "so has rewards.log"


def test_an_outline_has_no_message() -> None:
    assert outline(ValueError("text of a response")) == "ValueError"


def test_an_error_that_comes_from_no_function_of_the_user() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("")
    assert in_words(caught.value).startswith("JSONDecodeError: Expecting value")
