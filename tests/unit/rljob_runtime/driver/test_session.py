"""A session on made-up parts, in virtual time."""

import pytest

from rljob_runtime.driver.reward_failures import RewardsFailed, RewardsNeverWorked
from tests.support.simulated.losing_job import Losses, run_losing


def ending(losses: Losses) -> BaseException:
    """The error that ends a job."""
    with pytest.raises(BaseExceptionGroup) as raised:
        run_losing(losses)
    (error,) = raised.value.exceptions
    return error


def test_rewards_that_all_fail_end_the_job_before_anything_is_trained() -> None:
    error = ending(Losses(failure=lambda uid: "error: KeyError: 'answer'"))
    assert isinstance(error, RewardsNeverWorked)
    assert "all 8 samples of step 0" in str(error) and "error: KeyError: 'answer'" in str(error)


def test_rewards_that_fail_from_some_step_on_end_it_too() -> None:
    error = ending(Losses(steps=40, failure=lambda uid: "timeout after 10 s" if uid >= 40 else None))
    assert isinstance(error, RewardsFailed)


@pytest.mark.parametrize("at", [[], [("step", 5)]], ids=["undisturbed", "with a lost trainer"])
def test_groups_without_rewards_among_others_do_not(at: list[tuple[str, int]]) -> None:
    session = run_losing(Losses(at=at, failure=lambda uid: None if uid % 4 == 0 else "timeout after 10 s"))
    assert len(session.losable.trained) == 12
