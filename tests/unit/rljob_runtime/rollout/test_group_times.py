"""What is recorded of a group's time besides its stages."""

import pytest

from rljob_runtime.groups.responses import Response
from rljob_runtime.rewards import Score
from rljob_runtime.rollout.group_times import phases_of, reward_times, sibling_spread, teacher_time
from rljob_runtime.samples import Timing


@pytest.mark.parametrize(
    ("lives", "spread"),
    [([(0, 5)], 0), ([(0, 5), (1, 9), (2, 3)], 5), ([(4.0, 1.0000004), (4.0, 1.0)], 0)],
)
def test_spread_is_from_the_first_complete_response_to_the_last(lives, spread):
    assert sibling_spread([Response(began, seconds=seconds) for began, seconds in lives]) == spread


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        # The one that ran longest had not to wait, and was not the last.
        (
            [Score(1.0, seconds=2.0), Score(1.0, seconds=0.5, waited=1.75)],
            {"waiting": 1.75, "running": 0.5, "waited": [0, 1.75], "ran": [2, 0.5]},
        ),
        (
            [Score(0.0, "timeout after 10 s", seconds=10.0, waited=3.0), Score(1.0, seconds=0.12345678)],
            {"waiting": 3, "running": 10, "waited": [3, 0], "ran": [10, 0.123457]},
        ),
        ([Score(1.0), Score(0.5)], {}),
    ],
)
def test_times_of_a_reward_are_those_of_each_response_and_of_the_one_that_was_scored_last(scores, expected):
    assert reward_times(scores) == expected


@pytest.mark.parametrize(("seconds", "expected"), [([0.5, 1.25, 1.0], {"teacher": 1.25}), ([0.0, 0.0], {})])
def test_the_time_of_a_teacher_is_that_of_its_last_answer(seconds, expected):
    assert teacher_time([Score(1.0, teacher_seconds=each) for each in seconds]) == expected


def test_phases_are_recorded_where_there_were_any():
    timing = Timing(queued=0.0000004, prefill=0.25, decode=2.0, preempted=1.0, preemptions=2)
    assert phases_of(timing) == {"prefill": 0.25, "decode": 2.0, "preempted": 1.0, "preemptions": 2}
