"""Which groups are refused instead of trained (`rollout.filter`), and why.

Guarantees: the answer follows from the rewards of the group alone; a group without any reward is never
refused, since that is a failure and says nothing of its prompt. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rljob_api.training import Training

Reason: TypeAlias = Literal["equal_rewards", "pass_rate"]
"""Why a group is refused."""
Scores: TypeAlias = Sequence[tuple[float, str | None]]
"""Of each response of a group its reward, and why there is none or None."""


def all_equal(scores: Scores) -> bool:
    """Whether the responses of a group that have a reward all have the same one. A group without any reward
    is no such group, and neither is one of a single response, whose advantage is its reward."""
    rewards = _rewards(scores)
    return len(scores) > 1 and bool(rewards) and max(rewards) == min(rewards)


@dataclass(frozen=True)
class GroupFilter:
    """See the module's guarantees. How many groups are refused is `Refill`'s to say."""

    equal_rewards: bool = False
    """Whether groups of equal rewards are refused."""
    pass_rates: tuple[float, float] | None = None
    """The smallest and the largest pass rate that is trained, 0 to 1; None: any is."""
    pass_reward: float = 1.0
    """A response passes where its reward is at least this."""

    @staticmethod
    def of(training: Training) -> "GroupFilter":
        """The filter of a job."""
        wanted = training.rollout.filter
        rates = wanted.pass_rate
        return GroupFilter(
            wanted.zero_variance is not None,
            None if rates is None else (rates.minimum, rates.maximum),
            training.data.pass_reward,
        )

    def reason(self, scores: Scores) -> Reason | None:
        """Why a group is to be refused; None where it is to be trained. One of equal rewards is refused for
        these, whatever its pass rate."""
        if self.equal_rewards and all_equal(scores):
            return "equal_rewards"
        return "pass_rate" if self.outside(scores) else None

    def outside(self, scores: Scores) -> bool:
        """Whether the pass rate of a group is not among those that are trained. It is the share of all its
        responses: one without a reward does not pass."""
        rewards = _rewards(scores)
        if self.pass_rates is None or not rewards:
            return False
        smallest, largest = self.pass_rates
        rate = sum(reward >= self.pass_reward for reward in rewards) / len(scores)
        return not smallest <= rate <= largest


def _rewards(scores: Scores) -> list[float]:
    """Those that there are."""
    return [reward for reward, failure in scores if failure is None]
