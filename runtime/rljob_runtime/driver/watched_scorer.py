"""A scorer that tells `RewardFailures` what became of each group."""

from collections.abc import Sequence

from rljob_runtime.driver.reward_failures import RewardFailures
from rljob_runtime.groups.responses import Response
from rljob_runtime.rewards import Score
from rljob_runtime.rollout.rollouter import Scorer
from rljob_runtime.samples import Prompt


class WatchedScorer:
    """Implements the rollouter's `Scorer` on another one."""

    def __init__(self, scorer: Scorer, failures: RewardFailures) -> None:
        self._scorer = scorer
        self._failures = failures

    async def __call__(self, prompt: Prompt, responses: Sequence[Response]) -> Sequence[Score]:
        """Let the other scorer score the group, and tell of its failures. Returns what the other one does:
        a score for each response."""
        scores = await self._scorer(prompt, responses)
        self._failures.scored(prompt.uid, [score.told_failure for score in scores])
        return scores
