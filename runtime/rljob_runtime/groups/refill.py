"""Groups that teach nothing, and how many of them are refused so that other prompts take their places
(`rollout.filter.zeroVariance`; DAPO's dynamic sampling, arXiv:2503.14476).

Guarantees: a group is refused only where all its rewards are equal and another prompt takes its place;
between two steps no more than a given number of groups are refused, so that a step does not wait for ever
where nearly every group is such a one. Pure: no clock, no I/O.
"""

from collections.abc import Sequence


def all_equal(scores: Sequence[tuple[float, str | None]]) -> bool:
    """Whether the responses of a group that have a reward all have the same one. `scores`: of each its
    reward, and why there is none or None. A group without any reward is no such group, and neither is one of
    a single response, whose advantage is its reward."""
    rewards = [reward for reward, failure in scores if failure is None]
    return len(scores) > 1 and bool(rewards) and max(rewards) == min(rewards)


class Refill:
    """Whether a group with equal rewards is refused."""

    def __init__(self, most: int, endless: bool) -> None:
        """`most`: groups that are refused between two steps. `endless`: whether there is always another
        prompt (`schedule.totalSteps`), so that the job trains as many groups as without refusals; otherwise
        (`schedule.epochs`) it trains as many fewer."""
        self.endless = endless
        self._most = most
        self._refused = 0
        """Since the last step was trained."""

    def refuse(self, prompts_left: int) -> bool:
        """Whether a group with equal rewards is refused; it then counts as such. `prompts_left`: those that
        have yet to be dispatched, where there is an end of them."""
        if self._refused == self._most or not (self.endless or prompts_left):
            return False
        self._refused += 1
        return True

    def step_trained(self) -> None:
        """Another step may refuse as many."""
        self._refused = 0
