"""When failing rewards end a job."""

from pathlib import Path

import pytest

from rljob_runtime.driver.reward_failures import (
    OUTAGE_SAMPLES,
    RewardFailures,
    RewardsFailed,
    RewardsNeverWorked,
)

BOOM = "error: ValueError: boom"
AWAY = "teacher: t:8000 answered 503 (6 times)"
GROUP = 8


def failures() -> RewardFailures:
    return RewardFailures(
        'training.reward.function: "my_rewards:score"', Path("/run/rewards.log"), "teacher.server: 't'"
    )


def step(found: RewardFailures, number: int, *groups: list[str | None], last: bool = False) -> None:
    uids = [number * 100 + index for index in range(len(groups))]
    for uid, group in zip(uids, groups, strict=True):
        found.scored(uid, group)
    found.to_train(number, uids, last)


def test_a_function_that_never_worked_ends_the_job_at_its_first_step() -> None:
    with pytest.raises(RewardsNeverWorked) as raised:
        step(failures(), 0, [BOOM, "timeout after 10 s"], [BOOM, BOOM])
    assert str(raised.value) == (
        'training.reward.function: "my_rewards:score" failed for all 4 samples of step 1 and has never given '
        "a reward. The first failure: error: ValueError: boom (more in /run/rewards.log)"
    )


def test_a_teacher_that_scored_nothing_ends_the_job_at_its_first_step_for_another_attempt() -> None:
    with pytest.raises(RewardsFailed) as raised:
        step(failures(), 0, [AWAY, "timeout after 10 s"], [AWAY, AWAY])
    assert str(raised.value) == (
        "teacher.server: 't' failed for all 4 samples of step 1, before any was scored. "
        f"The first failure of this step: {AWAY}"
    )


def test_a_teacher_that_is_away_is_no_mistake_of_the_rewards() -> None:
    """Rewards fail too, in one group: another attempt may find the teacher."""
    with pytest.raises(RewardsFailed, match=r"^teacher\.server: 't' failed for all 4 samples of step 1"):
        step(failures(), 0, [BOOM, BOOM], [BOOM, AWAY])


def test_an_outage_of_the_teacher_is_told_as_that() -> None:
    found = failures()
    found.worked_before()
    with pytest.raises(RewardsFailed) as raised:
        step(found, 3, [AWAY] * OUTAGE_SAMPLES)
    assert str(raised.value) == (
        "teacher.server: 't' failed for the last 64 samples in a row, up to step 4. "
        f"The first failure of this step: {AWAY}"
    )


def test_one_reward_among_failures_is_enough_to_go_on() -> None:
    found = failures()
    step(found, 0, [BOOM, BOOM], [BOOM, None])
    step(found, 1, [BOOM] * GROUP, [BOOM] * GROUP)


def test_a_reward_in_a_group_of_a_later_step_shows_that_the_function_works() -> None:
    found = failures()
    found.scored(200, [None, BOOM])
    step(found, 0, [BOOM, BOOM])


def test_an_outage_is_so_many_samples_in_a_row_over_whole_steps() -> None:
    found = failures()
    found.worked_before()
    last = OUTAGE_SAMPLES // GROUP - 1
    for number in range(last):
        step(found, number, [BOOM] * GROUP)
    with pytest.raises(RewardsFailed) as raised:
        step(found, last, [BOOM] * GROUP)
    assert str(raised.value) == (
        'training.reward.function: "my_rewards:score" failed for the last 64 samples in a row, up to step 8. '
        "The first failure of this step: error: ValueError: boom (more in /run/rewards.log)"
    )


def test_a_last_step_without_any_reward_is_an_outage_however_small_it_is() -> None:
    found = failures()
    found.worked_before()
    step(found, 0, [BOOM] * GROUP)
    with pytest.raises(RewardsFailed) as raised:
        step(found, 1, [BOOM] * GROUP, last=True)
    assert str(raised.value) == (
        'training.reward.function: "my_rewards:score" failed for all 8 samples of step 2, the last of the '
        "job. The first failure of this step: error: ValueError: boom (more in /run/rewards.log)"
    )


def test_one_reward_in_the_last_step_is_enough() -> None:
    found = failures()
    step(found, 1, [BOOM] * GROUP, [BOOM, None], last=True)


def test_a_step_with_a_reward_ends_the_row() -> None:
    found = failures()
    found.worked_before()
    for number in range(3 * OUTAGE_SAMPLES // GROUP):
        step(found, number, [BOOM] * GROUP if number % 4 else [None] * GROUP)


def test_groups_of_which_nothing_is_known_count_as_rewarded() -> None:
    found = failures()
    found.scored(1, [BOOM])
    found.to_train(0, [1, 2], last=False)
    with pytest.raises(RewardsNeverWorked):
        step(found, 1, [BOOM])


def test_a_group_that_is_made_again_is_judged_by_its_newest_scores() -> None:
    found = failures()
    found.scored(1, [BOOM])
    found.scored(1, [None])
    found.to_train(0, [1], last=False)


def test_a_failure_of_several_lines_is_told_in_one() -> None:
    with pytest.raises(RewardsNeverWorked, match="error: a b"):
        step(failures(), 0, ["error: a\n  b"])
