"""Losses and advantages as a job's own code has them: right ones, and one for each way to be wrong."""

import os
import signal
from collections.abc import Sequence
from itertools import count

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from rljob_runtime.objective.advantages import GroupRewards
from rljob_runtime.objective.tokens import Tokens

_calls = count()


def clip(tokens: Tokens, old: Tensor, low: float = 0.2, high: float = 0.2) -> Tensor:
    ratio = (tokens.new - old).exp()
    gain = torch.minimum(ratio * tokens.advantages, ratio.clamp(1 - low, 1 + high) * tokens.advantages)
    # Dual clip, as the default has it.
    return torch.where(tokens.advantages < 0, -gain.maximum(3.0 * tokens.advantages), -gain)


def killed_on_rank_1(tokens: Tokens, old: Tensor) -> Tensor:
    """Ends the process as the kernel would, in the middle of a step."""
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return clip(tokens, old)


def never_finite(tokens: Tokens, old: Tensor) -> Tensor:
    """Its gradient is finite all the same."""
    return clip(tokens, old) + torch.tensor(0.0).log()


def surprised(tokens: Tokens, old: Tensor) -> Tensor:
    """Not finite for a token that an engine was certain of."""
    return clip(tokens, old) / -tokens.engine


def root(tokens: Tokens, old: Tensor) -> Tensor:
    """Finite, with a gradient that is not: the slope of a square root at 0."""
    return (tokens.new - tokens.new.detach()).sqrt() + tokens.advantages


def mean(tokens: Tokens, old: Tensor) -> Tensor:
    return clip(tokens, old).mean()


def by_count(tokens: Tokens, old: Tensor) -> Tensor:
    return clip(tokens, old) / len(tokens.new)


def detached(tokens: Tokens, old: Tensor) -> Tensor:
    return clip(tokens, old).detach()


def constant(tokens: Tokens, old: Tensor) -> Tensor:
    return clip(tokens, old) * 0


def elsewhere(tokens: Tokens, old: Tensor) -> Tensor:
    return torch.ones(len(old), requires_grad=True) * 2


def number(tokens: Tokens, old: Tensor) -> float:
    return 1.0


def raises(tokens: Tokens, old: Tensor) -> Tensor:
    return tokens.no_such_field  # type: ignore[attr-defined]


def ranks(groups: Sequence[GroupRewards], scale: float = 1.0) -> list[NDArray[np.float64]]:
    """How many responses of its group have a lower reward, less how many have a higher one."""
    return [
        scale * np.sign(each.rewards[:, None] - each.rewards[None])[:, each.counted].sum(1) for each in groups
    ]


def flattened(groups: Sequence[GroupRewards]) -> NDArray[np.float64]:
    return np.concatenate(ranks(groups))


def one_each(groups: Sequence[GroupRewards]) -> list[float]:
    return [float(each.rewards.mean()) for each in groups]


def words(groups: Sequence[GroupRewards]) -> list[str]:
    return ["good" for _ in groups]


def nothing(groups: Sequence[GroupRewards]) -> None:
    return None


def by_variance(groups: Sequence[GroupRewards]) -> list[NDArray[np.float64]]:
    with np.errstate(all="ignore"):
        return [(each.rewards - each.rewards.mean()) / each.rewards.std() for each in groups]


def changing(groups: Sequence[GroupRewards]) -> list[NDArray[np.float64]]:
    return ranks(groups, scale=1.0 + next(_calls))


def unknown_row(groups: Sequence[GroupRewards]) -> list[NDArray[np.float64]]:
    raise KeyError(groups[0].row)
