"""The loss and the advantages of job.yaml."""

import numpy as np
import torch

from rljob_runtime.objective.advantages import GroupRewards
from rljob_runtime.objective.tokens import Tokens


def squared(tokens: Tokens, old: torch.Tensor, weight: float = 0.1) -> torch.Tensor:
    """REINFORCE by ratios, held near 1 by the square of their logarithm: the loss of each token, shape
    (tokens,). `old` is the engines' log-probability of each."""
    log_ratio = (tokens.new - old).clamp(-5, 5)
    return -log_ratio.exp() * tokens.advantages + weight * log_ratio**2


def ranks(groups: list[GroupRewards]) -> list[np.ndarray]:
    """By place alone: from -1 for the worst response of a group to 1 for the best, equal ones alike. The
    advantages of each group of the step, shape (samples,)."""
    found = []
    for group in groups:
        below = (group.rewards[:, None] > group.rewards).sum(axis=1)
        above = (group.rewards[:, None] < group.rewards).sum(axis=1)
        found.append((below - above) / max(1, len(group.rewards) - 1))
    return found
