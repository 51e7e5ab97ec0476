"""Advantages of a step's responses, from their rewards: the table of what a manifest's `advantage` names.

Guarantees:
- a response without a reward has advantage 0 and does not move the others';
- equal rewards of a group give exactly 0 with every advantage that compares within groups alone;
- in a group of n responses no advantage of GRPO that is divided by the standard deviation exceeds
  (n - 1) / sqrt(n), and none of MaxRL n - 1, whichever responses have rewards;
- the result is finite for rewards as reward workers let them through (up to 1e6 in size).

Pure numpy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rljob_api.algorithm import Algorithm, MaxRl, NoAdvantage, ReinforcePlusPlus, Rloo
from rljob_runtime.job_errors import RewardsUnfit
from rljob_runtime.objective.own import Own, load_own

EPSILON = 1e-6
"""Keeps GRPO's division defined where all rewards are nearly equal."""
_VARIANCE = 1e-8
"""Added to the variance that rewards are whitened by, for the same."""


@dataclass(frozen=True)
class GroupRewards:
    """What advantages of a group are computed from. Arrays have shape (samples,), one entry for each response
    to the prompt."""

    uid: int
    """Position of its prompt in the job's sequence."""
    row: int
    """Of the data set."""
    rewards: NDArray[np.float64]
    """With all shaping; whatever there is where `counted` is false."""
    counted: NDArray[np.bool_]
    """Which responses have a reward."""
    tokens: NDArray[np.int64]
    """How many tokens of each are trained; 0 where it has no reward."""


_Formula: TypeAlias = Callable[[Any, Sequence[GroupRewards]], list[NDArray[np.float64]]]
"""From the settings and the groups; what it gives for responses that do not count is not looked at."""


@dataclass(frozen=True)
class Estimator:
    """Computes the advantages that a manifest asks for. Driver and trainer call the same."""

    formula: Callable[[Sequence[GroupRewards]], list[NDArray[np.float64]]]
    across_groups: bool
    """Whether an advantage depends on the other groups of the step."""

    def __call__(self, groups: Sequence[GroupRewards]) -> list[NDArray[np.float32]]:
        """From all groups of a step, in ascending order of uid, or some of them where that makes no
        difference, to the advantages of each, of shape (samples,). Raises `RewardsUnfit`,
        `OwnFunctionFailed`."""
        return [
            np.where(group.counted, found, 0.0).astype(np.float32)
            for group, found in zip(groups, self.formula(groups), strict=True)
        ]


def grpo(by_std: bool, groups: Sequence[GroupRewards]) -> list[NDArray[np.float64]]:
    """GRPO (arXiv:2402.03300, section 4.1.2): (reward - mean) / (std + 1e-6), with the sample standard
    deviation (n - 1); Dr. GRPO (arXiv:2503.20783): without the division.

    A group of one response (samplesPerPrompt 1) is trained without a baseline: mean 0, standard deviation 1,
    so that the reward is the advantage. In a larger group the only reward that is left has nothing to be
    compared with, and its advantage is 0."""
    return [_grpo(each, by_std) for each in groups]


def _grpo(group: GroupRewards, by_std: bool) -> NDArray[np.float64]:
    centred = _centred(group)
    if not by_std:
        return centred
    if len(group.rewards) == 1:
        return centred / (1 + EPSILON)
    return centred / (group.rewards[group.counted].std(ddof=1) + EPSILON) if _differ(group) else centred


def rloo(setting: Rloo, groups: Sequence[GroupRewards]) -> list[NDArray[np.float64]]:
    """REINFORCE leave-one-out (arXiv:2402.14740): the reward less the mean of the other responses' rewards,
    which is n / (n - 1) * (reward - mean)."""
    return [_centred(each) * _others(int(each.counted.sum())) for each in groups]


def _others(count: int) -> float:
    return count / (count - 1) if count > 1 else 0.0


def reinforce_plus_plus(
    setting: ReinforcePlusPlus, groups: Sequence[GroupRewards]
) -> list[NDArray[np.float64]]:
    """REINFORCE++ (arXiv:2501.03262): the reward, with `baseline` less the mean of its group, whitened: less
    the mean over all trained tokens of the step, divided by their sample standard deviation."""
    values = [_centred(each) if setting.baseline else each.rewards for each in groups]
    trained = [each.tokens > 0 for each in groups]
    counted = [value for each, inside in zip(values, trained, strict=True) for value in each[inside]]
    if len(set(counted)) < 2:
        return [np.zeros(len(each.rewards)) for each in groups]
    weights = np.concatenate([each.tokens[inside] for each, inside in zip(groups, trained, strict=True)])
    mean = float((weights * counted).sum() / weights.sum())
    variance = float((weights * (np.array(counted) - mean) ** 2).sum() / (weights.sum() - 1))
    return [(each - mean) / np.sqrt(variance + _VARIANCE) for each in values]


def max_rl(setting: MaxRl, groups: Sequence[GroupRewards]) -> list[NDArray[np.float64]]:
    """MaxRL (arXiv:2602.02710): (reward - mean) / mean. Raises `RewardsUnfit` for a negative reward."""
    return [_max_rl(each) for each in groups]


def _max_rl(group: GroupRewards) -> NDArray[np.float64]:
    counted = group.rewards[group.counted]
    if counted.min(initial=0.0) < 0:
        raise RewardsUnfit(
            f"group {group.uid} (row {group.row} of the data) has a reward of {counted.min():g}, and with "
            "algorithm.advantage.maxRl, which divides by the mean of a group's rewards, none may be below 0: "
            "change the reward, or choose another advantage"
        )
    if not _differ(group):
        return _centred(group)
    # By a power of two, which rounds nothing: the mean of tiny rewards would be rounded to 0, otherwise.
    _, exponent = np.frexp(counted.max())
    scaled = np.ldexp(np.where(group.counted, group.rewards, 0.0), -exponent)
    # They differ, and none is negative: the mean is above 0.
    mean = float(scaled[group.counted].mean())
    return _centred(replace(group, rewards=scaled)) / mean


def _centred(group: GroupRewards) -> NDArray[np.float64]:
    """Rewards less the mean of those that count. The reward itself, in a group of one response."""
    if len(group.rewards) == 1:
        return group.rewards
    if not _differ(group):
        # All rewards are equal, or there is only one. Their rounded mean may differ from them, and a division
        # by a standard deviation of almost 0 would make an advantage of that difference.
        return np.zeros(len(group.rewards))
    centred: NDArray[np.float64] = group.rewards - group.rewards[group.counted].mean()
    return centred


def _differ(group: GroupRewards) -> bool:
    """Whether there are rewards to be compared with each other."""
    counted = group.rewards[group.counted]
    return len(counted) > 1 and bool(counted.max() > counted.min())


def no_advantage(setting: NoAdvantage, groups: Sequence[GroupRewards]) -> list[NDArray[np.float64]]:
    """0 for each response: a teacher alone is learned from (`objective.distillation`)."""
    return [np.zeros(len(each.rewards)) for each in groups]


def own_advantage(function: Own, groups: Sequence[GroupRewards]) -> list[NDArray[np.float64]]:
    """What a function of the job's own returns. Raises `OwnFunctionFailed`."""
    found = function(groups)
    if not isinstance(found, Sequence | np.ndarray):
        raise function.failed(f"returned {type(found).__name__}, and must return a list of arrays")
    if len(found) != len(groups):
        raise function.failed(
            f"returned {len(found)} arrays for {len(groups)} groups, and must return one for each"
        )
    return [_own_of_group(function, group, each) for group, each in zip(groups, found, strict=True)]


def _own_of_group(function: Own, group: GroupRewards, found: Any) -> NDArray[np.float64]:
    try:
        advantages = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError):
        raise function.failed(f"returned {str(found)[:60]!r} for a group, and must return numbers") from None
    if advantages.shape != group.rewards.shape:
        raise function.failed(
            f"returned an array of shape {advantages.shape} for a group of {len(group.rewards)} responses, "
            "and must return the advantage of each"
        )
    if not np.isfinite(advantages[group.counted]).all():
        raise function.failed(
            f"returned advantages that are not finite for group {group.uid} (row {group.row} of the data), "
            f"with rewards {', '.join(f'{each:g}' for each in group.rewards[group.counted][:16])}"
        )
    return advantages


ADVANTAGES: Mapping[str, _Formula] = {
    "grpo": grpo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "max_rl": max_rl,
    "none": no_advantage,
    "custom": own_advantage,
}
"""By the Python name of the member of `Advantage`. In place of their settings, `grpo` takes whether to divide
by the standard deviation, and `custom` the function that they name."""


def estimator(algorithm: Algorithm, search_path: Sequence[Path] = ()) -> Estimator:
    """What computes the advantages that the manifest asks for; a function of the job's own is looked for
    first in the folders of `search_path`. Raises `FunctionLoadError`."""
    name, setting = algorithm.advantage.chosen
    if name == "grpo":
        setting = algorithm.normalize_by_std
    elif name == "custom":
        setting = load_own(setting, search_path)
    across = name in ("reinforce_plus_plus", "custom")
    return Estimator(partial(ADVANTAGES[name], setting), across_groups=across)
