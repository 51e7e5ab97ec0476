"""What an update did to an engine's steps, by when they began and ended."""

from collections.abc import Sequence

import pytest

from tests.bench.step_clock import Flow, Step, flow


def begins(when: float) -> Step:
    return when, False, 0


def ends(when: float, tokens: int = 8) -> Step:
    return when, True, tokens


BEFORE = [begins(0.00), begins(0.01), ends(0.02), begins(0.02), ends(0.04), begins(0.04), ends(0.06)]
"""Two steps under way at a time; the one that began last ends after an update that begins at 0.06."""


@pytest.mark.parametrize(
    ("after", "longest", "idle"),
    [
        # It waits for nothing; a step takes 4 ms more.
        ([begins(0.06), ends(0.08), begins(0.08), ends(0.104), ends(0.124)], 24.0, 0.0),
        # The step under way ends, and nothing runs for 15 ms.
        ([ends(0.08), begins(0.095), begins(0.096), ends(0.115)], 35.0, 15.0),
        # Prompts are computed first, which gives no token.
        ([ends(0.08), begins(0.09), ends(0.11, 0), begins(0.112), ends(0.13)], 50.0, 10.0),
    ],
)
def test_what_an_update_did(after: Sequence[Step], longest: float, idle: float) -> None:
    found = flow([*BEFORE, *after], since=0.061)
    assert found.usual == pytest.approx(20.0)
    assert (found.longest, found.idle) == (pytest.approx(longest), pytest.approx(idle))


def test_one_step_at_a_time_has_a_time_without_any_after_each() -> None:
    steps = [
        begins(0.0),
        ends(0.02),
        begins(0.021),
        ends(0.04),
        begins(0.041),
        ends(0.06),
        begins(0.066),
        ends(0.08),
    ]
    assert flow(steps, since=0.045) == Flow(pytest.approx(20.0), pytest.approx(20.0), pytest.approx(6.0))
