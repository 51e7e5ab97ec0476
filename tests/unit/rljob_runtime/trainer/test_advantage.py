"""Group advantages against the formulas, worked by hand."""

import numpy as np
import pytest

from rljob_runtime.rewards.outcome import LARGEST
from rljob_runtime.trainer.advantage import group_advantages

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
    found = group_advantages(np.array(rewards, dtype=np.float64), np.array(valid, dtype=np.bool_), by_std)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("reward", [0.1, 100.1, 999_999.9, -333_333.3])
@pytest.mark.parametrize("samples", [2, 3, 6, 7, 11, 64])
@pytest.mark.parametrize("by_std", [True, False])
def test_equal_rewards_teach_nothing_at_all(reward: float, samples: int, by_std: bool) -> None:
    """Exactly 0: the rounding of a mean, divided by next to nothing, is a gradient to AdamW."""
    found = group_advantages(np.full(samples, reward), np.ones(samples, dtype=np.bool_), by_std)
    assert not found.any()


@pytest.mark.parametrize("samples", range(2, 10))
def test_no_advantage_exceeds_that_of_one_right_response_in_a_full_group(samples: int) -> None:
    """(n - 1) / sqrt(n), whichever responses of the group survive and however large the rewards are."""
    rewards = np.zeros(samples)
    rewards[0] = LARGEST
    for survivors in range(samples + 1):
        found = group_advantages(rewards, np.arange(samples) < survivors, True)
        assert np.abs(found).max() <= (samples - 1) / np.sqrt(samples) + 1e-6
