"""A scorer that asks a teacher too: of each finished response, beside its reward, off the trainer's path.

Guarantees: every response of a group gets a score: with the teacher's log-probabilities, or with the reason
why there are none, and then it is not trained, as one without a reward; a failing teacher is told in the log
at once, and then once a minute at most.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from rljob_runtime.groups.responses import Response
from rljob_runtime.rewards import TEACHER, Score
from rljob_runtime.rollout.rollouter import Scorer
from rljob_runtime.rollout.served_teacher import TeacherFailed
from rljob_runtime.samples import LogProbs, Prompt, Tokens

log = logging.getLogger(__name__)

_TELL_SECONDS = 60.0


class Teacher(Protocol):
    """What a teacher says of a response."""

    async def score(self, prompt: Tokens, response: Tokens) -> LogProbs:
        """Log-probabilities of the response's tokens, shape (response length,). Raises `TeacherFailed`."""
        ...


class TaughtScorer:
    """Implements the rollouter's `Scorer` on another one."""

    def __init__(self, scorer: Scorer, teacher: Teacher, clock: Callable[[], float]) -> None:
        """`clock`: in seconds."""
        self._scorer = scorer
        self._teacher = teacher
        self._clock = clock
        self._told = float("-inf")
        """When a failure was last told."""
        self._untold = 0

    async def __call__(self, prompt: Prompt, responses: Sequence[Response]) -> list[Score]:
        """For each response the other scorer's score, with what the teacher says. Ends by the time limits of
        both; raises what the other scorer raises, in a group of exceptions."""
        async with asyncio.TaskGroup() as tasks:
            scoring = tasks.create_task(self._scored(prompt, responses))
            asking = [tasks.create_task(self._ask(prompt, response)) for response in responses]
        return [_taught(score, *each.result()) for score, each in zip(scoring.result(), asking, strict=True)]

    async def _scored(self, prompt: Prompt, responses: Sequence[Response]) -> Sequence[Score]:
        return await self._scorer(prompt, responses)

    async def _ask(self, prompt: Prompt, response: Response) -> tuple[LogProbs | str, float]:
        """What the teacher says of the response, or why it does not, and the seconds that it took."""
        began = self._clock()
        found: LogProbs | str
        try:
            found = await self._teacher.score(prompt.tokens, response.tokens)
        except TeacherFailed as error:
            found = str(error)
            self._tell(found)
        return found, self._clock() - began

    def _tell(self, why: str) -> None:
        self._untold += 1
        now = self._clock()
        if now - self._told < _TELL_SECONDS:
            return
        log.warning(
            "no log-probabilities of the teacher for %d more responses, the newest: %s", self._untold, why
        )
        self._told, self._untold = now, 0


def _taught(score: Score, found: LogProbs | str, seconds: float) -> Score:
    """The score of a response with the teacher's log-probabilities, or with why there are none."""
    if score.failure is not None:
        # It is not trained either way.
        return msgspec.structs.replace(score, teacher_seconds=seconds)
    if isinstance(found, str):
        return Score(
            0.0,
            f"{TEACHER}: {found}",
            seconds=score.seconds,
            waited=score.waited,
            teacher_seconds=seconds,
        )
    return msgspec.structs.replace(score, teacher_log_probs=found, teacher_seconds=seconds)
