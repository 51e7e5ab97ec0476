"""What is said of a reward that was tried before a job starts."""

import pytest

from rljob_runtime.rewards import Score
from rljob_runtime.rewards.trial import Verdict, verdict

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
        (
            ["reward worker died (signal SIGSEGV)"],
            Verdict("reward worker died (signal SIGSEGV)", certain=False),
        ),
        (["timeout after 5 s", VALUE], None),
        (["timeout after 5 s"] * 2, None),
        (["cancelled"], None),
    ],
)
def test_what_the_scores_say(failures: list[str | None], expected: Verdict | None) -> None:
    assert verdict([Score(0.0, failure) for failure in failures]) == expected
