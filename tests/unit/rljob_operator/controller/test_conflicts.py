"""How soon a job is looked at again whose plan could not be carried out."""

import pytest

from rljob_operator.controller.conflicts import Conflicts
from tests.support.operator.observations import at

REF = ("default", "math")

CASES = {
    "the first time at once": (1, 0.0, 0.0),
    "then after a wait": (3, 0.0, 1.0),
    "which goes by": (3, 0.75, 0.25),
    "and is over": (3, 1.0, 0.0),
    "eight seconds at most": (40, 0.0, 8.0),
    "the clock was set back": (40, -18_000.0, 0.0),
    "nothing was refused": (0, 0.0, 0.0),
}


@pytest.mark.parametrize(("times", "seconds", "wait"), CASES.values(), ids=CASES)
def test_waits(times: int, seconds: float, wait: float) -> None:
    conflicts = Conflicts()
    for _ in range(times):
        conflicts.met(REF, at(0))
    assert conflicts.wait(REF, at(seconds)) == wait
