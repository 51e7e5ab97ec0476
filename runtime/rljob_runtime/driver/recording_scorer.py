"""A scorer that records how long the responses of each group are."""

from collections.abc import Sequence

from rljob_runtime.groups.responses import Response
from rljob_runtime.rewards import Score
from rljob_runtime.rollout.rollouter import Scorer
from rljob_runtime.samples import Prompt
from rljob_runtime.trace.record.length_log import LengthLog


class RecordingScorer:
    """Implements the rollouter's `Scorer` on another one."""

    def __init__(self, scorer: Scorer, lengths: LengthLog) -> None:
        self._scorer = scorer
        self._lengths = lengths

    async def __call__(self, prompt: Prompt, responses: Sequence[Response]) -> Sequence[Score]:
        """Record the group, whose responses are complete, and return what the other scorer does: a score
        for each response."""
        self._lengths.add(prompt, responses)
        return await self._scorer(prompt, responses)
