"""When a failing part is given up."""

import pytest

from rljob_runtime.restarts import GivenUp, RestartBudget


def test_failures_in_a_row_end_the_job():
    budget = RestartBudget("engine fast-0", limit=2)
    budget.failed("killed")
    budget.failed("killed")
    with pytest.raises(GivenUp, match="engine fast-0 failed 3 times in a row; the last time: killed"):
        budget.failed("killed")


def test_the_first_failure_is_told_beside_another_one_at_the_end():
    budget = RestartBudget("the trainer", limit=2)
    for why in ("killed", "killed"):
        budget.failed(why)
    budget.worked()
    for why in ("out of memory", "no device"):
        budget.failed(why)
    words = "failed 3 times in a row; the first time: out of memory; the last time: killed"
    with pytest.raises(GivenUp, match=words):
        budget.failed("killed")


def test_work_in_between_starts_the_count_anew():
    budget = RestartBudget("the trainer", limit=1)
    for _ in range(5):
        budget.failed("killed")
        budget.worked()
