"""When a failing part is given up."""

import pytest

from rljob_runtime.restarts import GivenUp, RestartBudget, starts_in_vain


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


WRONG = "engine fast-0: vLLM did not start: ValueError: heads of 48 are not supported"
CORE = "engine fast-0: its engine core (process {}) ended with exit code 1: KeyError: 'rope'"
NO_ROOM = (
    "engine fast-0: vLLM did not start: ValueError: Free memory on device (3/80 GiB) is less than desired"
)


@pytest.mark.parametrize(
    ("before", "now", "in_vain"),
    [
        ("", WRONG, False),
        (WRONG, WRONG, True),
        (CORE.format(17), CORE.format(4711), True),
        # Another error may be the first one's doing, and this one the next one's.
        (WRONG, CORE.format(17), False),
        # What may pass by itself.
        (NO_ROOM, NO_ROOM, False),
        ("OutOfMemoryError: CUDA out of memory", "OutOfMemoryError: CUDA out of memory", False),
        ("ValueError: address already in use", "ValueError: address already in use", False),
        ("RuntimeError: CUDA error: device busy", "RuntimeError: CUDA error: device busy", False),
        ("OSError: Stale file handle", "OSError: Stale file handle", False),
        ("AssertionError: connection refused", "AssertionError: connection refused", False),
        # No word of what was raised.
        ("its process has ended", "its process has ended", False),
        ("its engine core ended with exit code -9", "its engine core ended with exit code -9", False),
        ("it was not ready within 1800 s", "it was not ready within 1800 s", False),
    ],
)
def test_a_start_that_fails_again_as_before(before: str, now: str, in_vain: bool) -> None:
    assert starts_in_vain(before, now) is in_vain


def test_what_no_start_changes_ends_the_job_before_the_budget_is_used_up():
    budget = RestartBudget("engine fast-0")
    budget.failed(WRONG, untried=True)
    words = "engine fast-0 failed twice in the same way before it did any work, as it would again: .*of 48"
    with pytest.raises(GivenUp, match=words):
        budget.failed(WRONG, untried=True)


@pytest.mark.parametrize("untried", [(False, False), (True, False), (False, True)])
def test_a_part_that_has_worked_has_its_whole_budget(untried: tuple[bool, bool]) -> None:
    """It has been of use with the same settings."""
    budget = RestartBudget("engine fast-0")
    for each in untried:
        budget.failed(WRONG, untried=each)
