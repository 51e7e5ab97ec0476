"""When the policy is evaluated."""

import pytest

from rljob_runtime.evaluation.schedule import EvaluationSchedule


@pytest.mark.parametrize(
    ("every", "steps_per_version", "total", "expected"),
    [
        (1, 1, 3, [0, 1, 2, 3]),
        (2, 1, 5, [0, 2, 4, 5]),
        (2, 1, 4, [0, 2, 4]),
        (2, 3, 13, [0, 6, 12, 13]),
        (10, 1, 4, [0, 4]),
        (3, 1, 0, [0]),
    ],
)
def test_steps_after_which_it_is_evaluated(
    every: int, steps_per_version: int, total: int, expected: list[int]
) -> None:
    schedule = EvaluationSchedule(every, steps_per_version)
    assert [step for step in range(total + 1) if schedule.due(step, step == total)] == expected
