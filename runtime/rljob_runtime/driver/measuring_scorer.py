"""A scorer that tells the curriculum how well each prompt was answered."""

from collections.abc import Sequence

from rljob_runtime.groups.curriculum import Curriculum
from rljob_runtime.groups.responses import Response
from rljob_runtime.rewards import Score
from rljob_runtime.rollout.rollouter import Scorer
from rljob_runtime.samples import Prompt


class MeasuringScorer:
    """Implements the rollouter's `Scorer` on another one."""

    def __init__(self, scorer: Scorer, curriculum: Curriculum) -> None:
        self._scorer = scorer
        self._curriculum = curriculum

    async def __call__(self, prompt: Prompt, responses: Sequence[Response]) -> Sequence[Score]:
        """Let the other scorer score the group, and tell of its rewards: also of a group that is refused for
        being solved by all responses or by none, and of one without any. Returns what the other one does: a
        score for each response."""
        scores = await self._scorer(prompt, responses)
        self._curriculum.scored(prompt.row, [score.value for score in scores if score.failure is None])
        return scores
