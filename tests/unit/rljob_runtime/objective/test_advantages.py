"""Advantages against the formulas, worked by hand."""

import numpy as np
import pytest
from numpy.typing import NDArray

from rljob_api.algorithm import (
    Advantage,
    Algorithm,
    Distillation,
    MaxRl,
    NoAdvantage,
    ReinforcePlusPlus,
    Rloo,
    Teacher,
)
from rljob_runtime.job_errors import RewardsUnfit
from rljob_runtime.objective.advantages import ADVANTAGES, GroupRewards, estimator
from rljob_runtime.rewards.outcome import LARGEST

WHOLE = Algorithm()
CENTRED = Algorithm(normalize_by_std=False)
RLOO = Algorithm(advantage=Advantage(rloo=Rloo()))
WHITENED = Algorithm(advantage=Advantage(reinforce_plus_plus=ReinforcePlusPlus()))
BASELINE = Algorithm(advantage=Advantage(reinforce_plus_plus=ReinforcePlusPlus(baseline=True)))
TAUGHT = Algorithm(
    advantage=Advantage(none=NoAdvantage()), distillation=Distillation(teacher=Teacher(path="t"))
)
MAX_RL = Algorithm(advantage=Advantage(max_rl=MaxRl()))


def group(
    rewards: list[float], valid: list[int] | None = None, tokens: list[int] | None = None
) -> GroupRewards:
    counted = np.array([1] * len(rewards) if valid is None else valid, dtype=np.bool_)
    trained = np.array([10] * len(rewards) if tokens is None else tokens, dtype=np.int64)
    return GroupRewards(3, 70, np.array(rewards, dtype=np.float64), counted, np.where(counted, trained, 0))


def of_group(algorithm: Algorithm, each: GroupRewards) -> NDArray[np.float32]:
    (found,) = estimator(algorithm)([each])
    return found


CASES = [
    # rewards, which count, by std, expected
    pytest.param([1, 0], [1, 1], True, [0.70710578, -0.70710578], id="two: std is 0.5 * sqrt(2)"),
    pytest.param([1, 0], [1, 1], False, [0.5, -0.5], id="without std"),
    pytest.param([3, 1, 2], [1, 1, 1], True, [0.999999, -0.999999, 0.0], id="std 1"),
    pytest.param([2, 2, 2], [1, 1, 1], True, [0, 0, 0], id="all equal"),
    pytest.param(
        [3, 99, 1, 2], [1, 0, 1, 1], True, [0.999999, 0, -0.999999, 0], id="a failed one is left out"
    ),
    pytest.param([0.25], [1], True, [0.24999975], id="alone: mean 0, std 1"),
    pytest.param(
        [100], [1], False, [100], id="alone, without std: nothing to compare with, the reward itself"
    ),
    pytest.param([100] + [0] * 7, [1] + [0] * 7, True, [0] * 8, id="the only survivor has no baseline"),
    pytest.param([0.25, 5], [1, 0], False, [0, 0], id="the only survivor of two, without std"),
    pytest.param([7], [0], True, [0], id="alone and failed"),
    pytest.param(
        [4, 2, 9, 9, 9, 9, 9, 9],
        [1, 1] + [0] * 6,
        True,
        [0.7071063, -0.7071063, *[0] * 6],
        id="two survivors",
    ),
    pytest.param([np.nan, 3, 1], [0, 1, 1], False, [0, 1, -1], id="what a failed one holds is not read"),
    pytest.param([1, 1], [0, 0], True, [0, 0], id="all failed"),
    pytest.param([LARGEST, -LARGEST], [1, 1], False, [LARGEST, -LARGEST], id="as large as they come"),
    pytest.param([LARGEST / 3] * 6, [1] * 6, True, [0] * 6, id="large and all equal"),
    pytest.param([], [], True, [], id="no samples"),
]


@pytest.mark.parametrize(("rewards", "valid", "by_std", "expected"), CASES)
def test_advantages(rewards: list[float], valid: list[int], by_std: bool, expected: list[float]) -> None:
    found = of_group(WHOLE if by_std else CENTRED, group(rewards, valid))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("reward", [0.1, 100.1, 999_999.9, -333_333.3])
@pytest.mark.parametrize("samples", [2, 3, 6, 7, 11, 64])
@pytest.mark.parametrize("algorithm", [WHOLE, CENTRED, RLOO, MAX_RL], ids=["grpo", "drGrpo", "rloo", "maxRl"])
def test_equal_rewards_teach_nothing_at_all(reward: float, samples: int, algorithm: Algorithm) -> None:
    """Exactly 0: the rounding of a mean, divided by next to nothing, is a gradient to AdamW."""
    found = of_group(algorithm, group([abs(reward) if algorithm is MAX_RL else reward] * samples))
    assert not found.any()


@pytest.mark.parametrize("samples", range(2, 10))
def test_no_advantage_exceeds_that_of_one_right_response_in_a_full_group(samples: int) -> None:
    """(n - 1) / sqrt(n), with MaxRL n - 1, whichever responses of the group survive and however large the
    rewards are."""
    rewards = [LARGEST] + [0.0] * (samples - 1)
    for survivors in range(samples + 1):
        given = group(rewards, [index < survivors for index in range(samples)])
        assert np.abs(of_group(WHOLE, given)).max() <= (samples - 1) / np.sqrt(samples) + 1e-6
        assert np.abs(of_group(MAX_RL, given)).max() <= samples - 1


@pytest.mark.parametrize("largest", [5e-324, 1e-310, 2.2250738585072014e-308, 1e-9, LARGEST])
@pytest.mark.parametrize("failed", [0.0, LARGEST, -LARGEST, np.nan])
def test_max_rl_is_finite_however_small_the_rewards_are(largest: float, failed: float) -> None:
    """Also where their mean is too small to be a number, and whatever stands for a response without one."""
    found = of_group(MAX_RL, group([largest, 0, failed], [1, 1, 0]))
    np.testing.assert_array_equal(found, [1, -1, 0])


@pytest.mark.parametrize(
    ("algorithm", "rewards", "valid", "expected"),
    [
        (TAUGHT, [3, 1, 2], [1, 1, 0], [0, 0, 0]),
        (TAUGHT, [3], [1], [0]),
        # Each less the mean of the two others: 3 - 1.5, 1 - 2.5, 2 - 2.
        (RLOO, [3, 1, 2], [1, 1, 1], [1.5, -1.5, 0]),
        (RLOO, [1, 0], [1, 1], [1, -1]),
        (RLOO, [1, 99, 0, 0], [1, 0, 1, 1], [1, 0, -0.5, -0.5]),
        (RLOO, [5, 9], [1, 0], [0, 0]),
        (RLOO, [np.nan, 9], [0, 0], [0, 0]),
        # One right response of four weighs 1 / (1 / 4) - 1, three of them 1 / (3 / 4) - 1.
        (MAX_RL, [1, 0, 0, 0], [1, 1, 1, 1], [3, -1, -1, -1]),
        (MAX_RL, [1, 1, 1, 0], [1, 1, 1, 1], [1 / 3, 1 / 3, 1 / 3, -1]),
        (MAX_RL, [1, 0, -9, 0], [1, 1, 0, 1], [2, -1, 0, -1]),
        (MAX_RL, [0, 0], [1, 1], [0, 0]),
        (MAX_RL, [1e-300, 0], [1, 1], [1, -1]),
        (MAX_RL, [0.5, 7], [1, 0], [0, 0]),
    ],
)  # fmt: skip
def test_within_a_group(
    algorithm: Algorithm, rewards: list[float], valid: list[int], expected: list[float]
) -> None:
    np.testing.assert_allclose(of_group(algorithm, group(rewards, valid)), expected, rtol=1e-6)


def test_whitening_on_paper() -> None:
    """Tokens 3 of reward 1 and 1 of reward 0: mean 0.75, variance (3 / 16 + 9 / 16) / 3 = 0.25."""
    groups = [group([1], tokens=[3]), group([0], tokens=[1])]
    np.testing.assert_allclose(np.concatenate(estimator(WHITENED)(groups)), [0.5, -1.5], rtol=1e-6)


def test_whitening_after_the_group_s_mean() -> None:
    """Centred 0.5 and -0.5, twice, of 1, 1, 1 and 5 tokens: mean -0.25, variance 1.5 / 7."""
    groups = [group([1, 0], tokens=[1, 1]), group([7, 6], tokens=[1, 5])]
    deviation = np.sqrt(1.5 / 7)
    expected = [0.75 / deviation, -0.25 / deviation] * 2
    np.testing.assert_allclose(np.concatenate(estimator(BASELINE)(groups)), expected, rtol=1e-6)


def test_what_is_not_trained_is_not_whitened() -> None:
    """A failed response, and one whose tokens are all masked, are in no mean of tokens; the latter's reward
    is in its group's."""
    groups = [group([1, np.nan, 4], [1, 0, 1], [3, 9, 0]), group([0], tokens=[1])]
    first, second = estimator(WHITENED)(groups)
    np.testing.assert_allclose([first[0], first[1], second[0]], [0.5, 0, -1.5], rtol=1e-6)
    first, second = estimator(BASELINE)(groups)
    # -1.5 of 3 tokens and 0 of one: mean -1.125, variance 0.5625.
    np.testing.assert_allclose([first[0], first[1], second[0]], [-0.5, 0, 1.5], rtol=1e-6)


@pytest.mark.parametrize("algorithm", [WHITENED, BASELINE])
@pytest.mark.parametrize(
    "groups",
    [
        [],
        [group([])],
        [group([0.1] * 7), group([0.1] * 6)],
        [group([1, 2], [0, 0])],
        [group([1, 1], tokens=[1, 0])],
    ],
)
def test_where_nothing_differs_nothing_is_whitened(algorithm: Algorithm, groups: list[GroupRewards]) -> None:
    found = estimator(algorithm)(groups)
    assert [len(each) for each in found] == [len(each.rewards) for each in groups]
    assert not any(each.any() for each in found)


def test_a_negative_reward_is_refused_where_groups_are_divided_by_their_mean() -> None:
    with pytest.raises(RewardsUnfit, match=r"group 3 \(row 70 of the data\) has a reward of -0.5, and"):
        of_group(MAX_RL, group([1, -0.5, 3]))


def test_every_member_of_the_manifest_s_union_is_in_the_table() -> None:
    assert set(ADVANTAGES) == set(Advantage.one_of)


def test_who_compares_in_groups() -> None:
    told = [each.advantage.compares_in_groups for each in (WHOLE, WHITENED, BASELINE, RLOO, MAX_RL)]
    assert told == [False, False, True, True, True]
