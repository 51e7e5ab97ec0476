"""Under which reason a response without a reward is counted."""

import pytest

from rljob_runtime.rewards import failure_reason


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ("timeout after 10 s", "timeout"),
        ("error: ValueError: no answer in it (judge.py:12, in score)", "error"),
        ("error: TimeoutError: math-verify took longer than 1 s", "error"),
        ("reward worker died (signal SIGSEGV)", "reward worker died"),
        ("cancelled", "cancelled"),
        ("teacher: teacher.models:8000 answered 503 (6 times)", "teacher"),
    ],
)
def test_reason(failure: str, reason: str) -> None:
    assert failure_reason(failure) == reason
