"""A new leader whose view of the RLJob is old, at any moment of a job's life."""

import pytest

from tests.support.operator.handovers import Harm, Leader, harm

HISTORIES = 80
"""Of those that tests/bench/operator_handovers.py counts."""


@pytest.mark.parametrize("lists", [True, False])
def test_no_attempt_that_runs_is_deleted_and_no_second_head_runs(lists):
    """Also without a list of RLJobs: what is written first is refused where the view is old."""
    found = harm(Leader(lists, checks=True), HISTORIES)
    assert found == Harm(found.hand_overs) and found.hand_overs > 1000


def test_an_old_view_that_nothing_checks_deletes_attempts_that_run():
    """So that the histories above are such in which that happens."""
    assert harm(Leader(lists=False, checks=False), HISTORIES).deleted > 0
