"""Group advantages against the formulas, worked by hand."""

import numpy as np
import pytest

from rljob_runtime.rewards.worker import LARGEST
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
    pytest.param([0.25, 5], [1, 0], False, [0.25, 0], id="alone among failed ones"),
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
