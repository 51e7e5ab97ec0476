"""Advantages of a group of responses to one prompt.

Guarantees: a response without a reward has advantage 0 and does not move the others'; in a group of n
responses no normalized advantage exceeds (n - 1) / sqrt(n), whichever of them have rewards; equal rewards
give exactly 0; the result is finite for rewards as reward workers let them through (up to 1e6 in size).
Pure numpy.
"""

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-6
"""Keeps the division defined where all rewards are nearly equal."""


def group_advantages(
    rewards: NDArray[np.float64], valid: NDArray[np.bool_], normalize_by_std: bool
) -> NDArray[np.float32]:
    """Advantages, shape (samples,), from the rewards of all of a group's samples and from which of them
    count, each of that shape.

    GRPO (arXiv:2402.03300, section 4.1.2): (reward - mean) / (std + 1e-6), with the sample standard
    deviation (n - 1); Dr. GRPO (arXiv:2503.20783): without the division. A group of one sample
    (samplesPerPrompt 1) is trained without a baseline: mean 0, standard deviation 1, so that the reward is
    the advantage. In a larger group the only reward that is left has nothing to be compared with, and its
    advantage is 0.
    """
    counted = rewards[valid]
    if len(counted) == 0:
        return np.zeros(len(rewards), dtype=np.float32)
    if len(rewards) == 1:
        mean, std = 0.0, 1.0
    elif counted.max() == counted.min():
        # All rewards are equal, or there is only one. Their rounded mean may differ from them, and a division
        # by a standard deviation of almost 0 would make an advantage of that difference.
        return np.zeros(len(rewards), dtype=np.float32)
    else:
        mean, std = counted.mean(), counted.std(ddof=1)
    advantages = rewards - mean
    if normalize_by_std:
        advantages = advantages / (std + EPSILON)
    return np.where(valid, advantages, 0.0).astype(np.float32)
