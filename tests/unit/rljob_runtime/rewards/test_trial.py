"""A reward that is tried before a job starts: what is said of it, and that the trial itself is harmless."""

import os
import time
from pathlib import Path

import pytest

from rljob_runtime.rewards import Score
from rljob_runtime.rewards.trial import Verdict, try_reward, verdict
from tests.support.runtime.reward_inputs import reward_input

VALUE = "error: ValueError: no answer in it (judge.py:3, in score)"
NAME = "error: NameError: name 'match' is not defined (judge.py:3, in score)"


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([], None),
        ([None, None], None),
        ([VALUE, None], None),
        ([NAME, None], None),
        ([VALUE, VALUE], Verdict("ValueError: no answer in it (judge.py:3, in score)", certain=False)),
        (
            [NAME, NAME],
            Verdict("NameError: name 'match' is not defined (judge.py:3, in score)", certain=True),
        ),
        (
            [NAME, VALUE],
            Verdict("NameError: name 'match' is not defined (judge.py:3, in score)", certain=False),
        ),
        (["error: ImportError: no sympy"] * 2, Verdict("ImportError: no sympy", certain=True)),
        (
            ["error: AttributeError: 'RewardInput' object has no attribute 'text'"],
            Verdict("AttributeError: 'RewardInput' object has no attribute 'text'", certain=True),
        ),
        (
            ["error: AttributeError: 'NoneType' object has no attribute 'group'"],
            Verdict("AttributeError: 'NoneType' object has no attribute 'group'", certain=False),
        ),
        (["worker died (signal SIGSEGV)"], Verdict("worker died (signal SIGSEGV)", certain=False)),
        (["timeout after 5 s", VALUE], None),
        (["timeout after 5 s"] * 2, None),
        (["cancelled"], None),
    ],
)
def test_what_the_scores_say(failures: list[str | None], expected: Verdict | None) -> None:
    assert verdict([Score(0.0, failure) for failure in failures]) == expected


FUNCTIONS = """
import os, time
def right(sample): return 1.0
def wrong(sample): return match(sample)
def slow(sample): time.sleep(60)
def leaves(sample):
    print("noise")
    os._exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "judge_tried.py").write_text(FUNCTIONS)
    return tmp_path


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("right", None),
        ("wrong", "NameError: name 'match' is not defined (judge_tried.py:4, in wrong)"),
        ("leaves", "worker died (exit code 3)"),
    ],
)
def test_in_a_process_of_its_own(folder: Path, capfd: pytest.CaptureFixture[str], function: str,
                                 words: str | None) -> None:  # fmt: skip
    found = try_reward(f"judge_tried:{function}", {}, [folder], [reward_input()] * 2, seconds=60)
    assert (found.words if found is not None else None) == words
    assert capfd.readouterr() == ("", ""), "what the function prints is not for whoever checks a manifest"


def test_one_that_takes_long_is_left_alone(folder: Path) -> None:
    before, began = children(), time.monotonic()
    assert try_reward("judge_tried:slow", {}, [folder], [reward_input()], seconds=1.0) is None
    assert time.monotonic() - began < 30
    assert children() == before


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
