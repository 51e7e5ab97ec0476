"""Advantages of a group of responses to one prompt.

Guarantees: a response without a reward has advantage 0 and does not move the others'; the result is finite
for rewards as reward workers let them through (up to 1e6 in size). Pure numpy.
"""

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-6
"""Keeps the division defined where all rewards are equal."""


def group_advantages(
    rewards: NDArray[np.float64], valid: NDArray[np.bool_], normalize_by_std: bool
) -> NDArray[np.float32]:
    """Advantages, shape (samples,), from rewards and from which of them count, each of that shape.

    GRPO (arXiv:2402.03300, section 4.1.2): (reward - mean) / (std + 1e-6), with the sample standard
    deviation (n - 1); Dr. GRPO (arXiv:2503.20783): without the division. A single reward has mean 0 and
    standard deviation 1, so that it is its own advantage.
    """
    counted = rewards[valid]
    if len(counted) > 1:
        mean, std = counted.mean(), counted.std(ddof=1)
    else:
        mean, std = 0.0, 1.0
    advantages = rewards - mean
    if normalize_by_std:
        advantages = advantages / (std + EPSILON)
    return np.where(valid, advantages, 0.0).astype(np.float32)
