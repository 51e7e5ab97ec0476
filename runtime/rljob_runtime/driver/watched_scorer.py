"""A scorer that tells `RewardFailures` what became of each group."""

from collections.abc import Sequence

from rljob_runtime.driver.reward_failures import RewardFailures
from rljob_runtime.groups.responses import Response
from rljob_runtime.rollout.rollouter import Scorer
from rljob_runtime.samples import Prompt


class WatchedScorer:
    """Implements the rollouter's `Scorer` on another one."""

    def __init__(self, scorer: Scorer, failures: RewardFailures) -> None:
        self._scorer = scorer
        self._failures = failures

    async def __call__(
        self, prompt: Prompt, responses: Sequence[Response]
    ) -> Sequence[tuple[float, str | None]]:
        """Let the other scorer score the group, and tell of its failures. Returns what the other one does:
        for each response its reward, or 0 and why there is none."""
        scores = await self._scorer(prompt, responses)
        self._failures.scored(prompt.uid, [failure for _, failure in scores])
        return scores
