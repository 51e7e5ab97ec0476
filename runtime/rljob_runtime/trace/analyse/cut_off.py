"""Whether the limit of tokens costs reward: responses that it cuts off beside those that end by themselves.

Only responses to one prompt are compared with each other, for hard prompts have longer responses and lower
rewards whatever the limit is, and the policy changes from step to step. Where all responses are as long as
the limit, since they are meant to be, there is nothing to compare. Pure, and of constant size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass
class CutOff:
    """Groups that have responses of both kinds, by which of them earned more on average."""

    better: int = 0
    """Those that ended by themselves."""
    worse: int = 0
    """Those that were cut off. Groups in which both earned the same are not counted."""

    def add_group(self, responses: Sequence[tuple[bool, float]]) -> None:
        """Take the responses to a prompt that have a reward: whether each was cut off, and its reward."""
        kinds = [[reward for cut, reward in responses if cut is kind] for kind in (True, False)]
        if all(kinds):
            cut_off, ended = map(fmean, kinds)
            self.better += ended > cut_off
            self.worse += ended < cut_off

    @property
    def groups(self) -> int:
        """All that are counted."""
        return self.better + self.worse
