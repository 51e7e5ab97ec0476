"""How soon a job is decided on again whose decision failed."""

from random import Random

import pytest

from rljob_operator.controller.defects import Defects
from tests.support.operator.observations import at, new_job

REF = ("default", "math")
JOB = new_job()


def failed(times: int) -> tuple[Defects, list[float]]:
    """A job whose decision failed so often in a row, and the waits; the last was at second 0."""
    defects = Defects(Random(0))
    return defects, [defects.met(REF, JOB, at(0)) for _ in range(times)]


def test_the_waits_grow_up_to_a_minute() -> None:
    _, waits = failed(50)
    assert 0.5 <= waits[0] <= 1
    assert all(30 <= wait <= 60 for wait in waits[10:])


CASES = {
    "too early": (3, JOB, 1.0, False),
    "the wait is over": (3, JOB, 4.0, True),
    "the spec was changed": (3, new_job(generation=2), 0.0, True),
    "another job of that name": (3, new_job(uid="another"), 0.0, True),
    "nothing has failed": (0, JOB, 0.0, True),
    "the clock was set back": (3, JOB, -18_000.0, True),
}


@pytest.mark.parametrize(("times", "job", "seconds", "may"), CASES.values(), ids=CASES)
def test_when_it_may_be_decided_on_again(times, job, seconds, may) -> None:
    defects, _ = failed(times)
    assert (defects.wait(REF, job, at(seconds)) == 0.0) is may


def test_a_decision_ends_the_row() -> None:
    defects, _ = failed(50)
    defects.passed(REF)
    assert defects.wait(REF, JOB, at(0)) == 0.0
    assert defects.met(REF, JOB, at(0)) <= 1
