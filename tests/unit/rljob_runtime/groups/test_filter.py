"""Which groups are refused, and why."""

import pytest

from rljob_api import RLJob
from rljob_runtime.groups.filter import GroupFilter, all_equal
from tests.support.jobs import job


@pytest.mark.parametrize(
    ("scores", "equal"),
    [
        ([(1.0, None), (1.0, None)], True),
        ([(0.0, None), (0.0, None), (0.0, None)], True),
        ([(0.0, None), (0.0, None), (1e-9, None)], False),
        ([(1.0, None), (0.0, "timeout")], True),
        ([(1.0, None), (0.0, "timeout"), (0.5, None)], False),
        ([(0.0, "timeout"), (0.0, "error")], False),
        ([(1.0, None)], False),
    ],
    ids=[
        "all right", "all wrong", "a small difference", "one has a reward", "two have different ones",
        "none has a reward", "a single response is compared with nothing",
    ],
)  # fmt: skip
def test_equal_rewards(scores, equal):
    assert all_equal(scores) == equal


def scores(*rewards: float | None) -> list[tuple[float, str | None]]:
    """None: a response without a reward; its value says nothing."""
    return [(9.0, "timeout") if reward is None else (reward, None) for reward in rewards]


@pytest.mark.parametrize(
    ("rates", "rewards", "outside"),
    [
        ((0.25, 0.75), (1, 0, 0, 0), False),
        ((0.25, 0.75), (1, 1, 1, 0), False),
        ((0.26, 0.74), (1, 0, 0, 0), True),
        ((0.26, 0.74), (1, 1, 1, 0), True),
        ((0.0, 0.75), (0, 0, 0, 0), False),
        ((0.0, 0.75), (1, 1, 1, 1), True),
        ((0.25, 1.0), (0, 0, 0, 0), True),
        ((0.25, 1.0), (1, 1, 1, 1), False),
        ((0.5, 1.0), (1, None, None, None), True),
        ((0.0, 0.5), (1, None, None, None), False),
        ((0.25, 1.0), (None, None, None, None), False),
        ((1.0, 1.0), (1,), False),
        ((1.0, 1.0), (0,), True),
        ((0.29, 0.29), (1,) * 29 + (0,) * 71, False),
        (None, (0, 0, 0, 0), False),
    ],
    ids=[
        "the smallest rate is trained", "so is the largest", "below", "above", "never solved",
        "always solved", "never solved is too little", "always solved is not too much",
        "no reward is no pass", "of all responses", "no reward at all is a failure",
        "one response that passes", "one that does not", "a rate that floats have not exactly",
        "any rate is trained",
    ],
)  # fmt: skip
def test_pass_rates(
    rates: tuple[float, float] | None, rewards: tuple[float | None, ...], outside: bool
) -> None:
    refusing = GroupFilter(pass_rates=rates)
    assert refusing.outside(scores(*rewards)) == outside
    assert refusing.reason(scores(*rewards)) == ("pass_rate" if outside else None)


@pytest.mark.parametrize(("least", "outside"), [(0.5, False), (0.51, True)])
def test_a_response_passes_from_the_pass_reward_on(least: float, outside: bool) -> None:
    refusing = GroupFilter(pass_rates=(0.5, 1.0), pass_reward=least)
    assert refusing.outside(scores(0.5, 0.2)) == outside


@pytest.mark.parametrize(
    ("equal", "rates", "rewards", "reason"),
    [
        (True, (0.5, 0.75), (0, 0), "equal_rewards"),
        (True, (0.6, 0.75), (0, 1), "pass_rate"),
        (True, (0.5, 0.75), (0, 1), None),
        (True, None, (1, 1), "equal_rewards"),
        (False, (0.0, 0.75), (0, 0), None),
        (False, None, (1, 1), None),
    ],
)
def test_equal_rewards_come_before_the_pass_rate(
    equal: bool, rates: tuple[float, float] | None, rewards: tuple[float, ...], reason: str | None
) -> None:
    assert GroupFilter(equal, rates).reason(scores(*rewards)) == reason


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, GroupFilter(False, None, 0.5)),
        ({"zeroVariance": {}}, GroupFilter(True, None, 0.5)),
        ({"passRate": {"min": 0.1}}, GroupFilter(False, (0.1, 1.0), 0.5)),
        ({"zeroVariance": {}, "passRate": {"max": 0.9}}, GroupFilter(True, (0.0, 0.9), 0.5)),
    ],
)
def test_the_filter_of_a_job(wanted: dict[str, object], expected: GroupFilter) -> None:
    changes = {"training.rollout.filter": wanted, "training.data.passReward": 0.5}
    assert GroupFilter.of(RLJob.model_validate(job(changes)).spec.training) == expected
