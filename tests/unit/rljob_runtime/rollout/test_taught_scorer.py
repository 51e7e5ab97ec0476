"""A response's score with what its teacher says of it, or with why it says nothing."""

import asyncio
import logging
from collections.abc import Sequence

import numpy as np
import pytest

from rljob_runtime.groups.responses import Response
from rljob_runtime.rewards import Score
from rljob_runtime.rollout.served_teacher import TeacherFailed
from rljob_runtime.rollout.taught_scorer import TaughtScorer
from rljob_runtime.samples import LogProbs, Prompt, Tokens

PROMPT = Prompt(0, 0, 0, np.array([1, 2], np.int32))


def response(*tokens: int) -> Response:
    return Response(0.0, np.array(tokens, np.int32))


class Teacher:
    """Says minus the number of each token; fails for a response that begins with 9."""

    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)
        """Has one for each response that it was asked of."""

    async def score(self, prompt: Tokens, response: Tokens) -> LogProbs:
        assert prompt.tolist() == [1, 2]
        self.asked.release()
        await asyncio.sleep(0)
        if response[0] == 9:
            raise TeacherFailed("teacher:8000 answered 503 (6 times)", 503)
        return -response.astype(np.float32)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Rewards:
    """Gives what it is told, when the teacher was asked of every response: it waits for none of them."""

    def __init__(self, teacher: Teacher, *scores: Score) -> None:
        self.teacher, self.scores = teacher, scores

    async def __call__(self, prompt: Prompt, responses: Sequence[Response]) -> Sequence[Score]:
        async with asyncio.timeout(5):
            for _ in responses:
                await self.teacher.asked.acquire()
        return self.scores


def scored(*scores: Score, responses: Sequence[Response]) -> list[Score]:
    teacher = Teacher()
    scorer = TaughtScorer(Rewards(teacher, *scores), teacher, Clock())
    return asyncio.run(scorer(PROMPT, responses))


def test_a_reward_stays_as_it_is_beside_the_teacher() -> None:
    rewarded = Score(0.5, parts={"a": 0.5}, metrics={"m": None}, seconds=0.2, waited=0.1)
    (found,) = scored(rewarded, responses=[response(3, 4)])
    assert found.teacher_log_probs is not None and found.teacher_log_probs.tolist() == [-3, -4]
    assert (found.value, found.parts, found.metrics, found.waited) == (0.5, {"a": 0.5}, {"m": None}, 0.1)


def test_a_response_that_the_teacher_did_not_score_has_no_reward_either() -> None:
    rewarded = Score(0.5, parts={"a": 0.5}, seconds=0.2)
    first, second = scored(rewarded, rewarded, responses=[response(9, 4), response(4)])
    assert first == Score(0.0, "teacher: teacher:8000 answered 503 (6 times)", seconds=0.2)
    assert second.failure is None and second.teacher_log_probs is not None


def test_a_reward_that_failed_is_told_as_that() -> None:
    failed = Score(0.0, "timeout after 10 s", seconds=10.0)
    found = scored(failed, failed, responses=[response(9, 4), response(4)])
    assert [each.failure for each in found] == ["timeout after 10 s"] * 2
    assert [each.teacher_log_probs for each in found] == [None, None], "they are not trained"


async def test_what_the_scorer_raises_ends_the_questions_too() -> None:
    ended = asyncio.Event()

    class Patient:
        async def score(self, prompt: Tokens, response: Tokens) -> LogProbs:
            try:
                return await asyncio.get_running_loop().create_future()
            finally:
                ended.set()

    async def raises(prompt: Prompt, responses: Sequence[Response]) -> Sequence[Score]:
        await asyncio.sleep(0)
        raise ValueError("no workers")

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(5):
            await TaughtScorer(raises, Patient(), Clock())(PROMPT, [response(3)])
    assert raised.group_contains(ValueError, match="no workers") and ended.is_set()


async def test_a_failing_teacher_is_told_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    teacher, clock = Teacher(), Clock()
    scorer = TaughtScorer(Rewards(teacher, Score(1.0), Score(1.0)), teacher, clock)
    with caplog.at_level(logging.WARNING):
        for seconds in (0, 1, 30, 29.5, 1):
            clock.now += seconds
            await scorer(PROMPT, [response(9), response(9)])
    told = [record.getMessage() for record in caplog.records]
    why = "the newest: teacher:8000 answered 503 (6 times)"
    assert told == [
        f"no log-probabilities of the teacher for 1 more responses, {why}",
        f"no log-probabilities of the teacher for 6 more responses, {why}",
    ]
