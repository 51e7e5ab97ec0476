"""The client of a server that has a teacher, against one that fails in every way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from rljob_runtime.rollout.served_teacher import PAUSES, ServedTeacher, TeacherFailed, TeacherLost
from rljob_runtime.rollout.teacher_circuit import FAILURES
from rljob_runtime.samples import LogProbs
from tests.support.runtime.fake_teacher import (
    FakeTeacher,
    body,
    endless,
    fake_teacher,
    hangs_up,
    never,
    status,
)

PROMPT, RESPONSE = np.array([3, 4], np.int32), np.array([5, 6, 7], np.int32)
RIGHT = np.array([-0.5, -0.6, -0.7], np.float32)
SECRET = "sk-0123456789"


class Asking:
    """A client, and the pauses that it made."""

    def __init__(self, fake: FakeTeacher, key: str | None = None, **fields: Any) -> None:
        self.pauses: list[float] = []
        self.said: list[str] = []
        self.now = 0.0
        self.teacher = ServedTeacher(
            fake.server(**fields), key, self._sleep, self.said.append, lambda: self.now
        )

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    async def score(self) -> LogProbs:
        return await self.teacher.score(PROMPT, RESPONSE)


@asynccontextmanager
async def asking(fake: FakeTeacher, key: str | None = None, **fields: Any) -> AsyncIterator[Asking]:
    made = Asking(fake, key, **fields)
    async with made.teacher:
        yield made


async def test_a_response_has_the_log_probabilities_of_its_own_tokens() -> None:
    async with fake_teacher() as fake, asking(fake) as client:
        np.testing.assert_array_equal(await client.score(), RIGHT)
        assert fake.asked == [
            {"model": "teacher", "prompt": [3, 4, 5, 6, 7], "max_tokens": 1, "prompt_logprobs": 0}
        ]
        assert client.pauses == []


@pytest.mark.parametrize("answer", [status(500), status(503), status(429), hangs_up])
async def test_what_may_pass_is_asked_again(answer: Any) -> None:
    async with fake_teacher() as fake, asking(fake) as client:
        fake.answers = [answer, answer]
        np.testing.assert_array_equal(await client.score(), RIGHT)
        assert client.pauses == list(PAUSES[:2]) and len(fake.asked) == 3


async def test_a_server_that_stays_away_is_asked_a_few_times() -> None:
    async with fake_teacher() as fake, asking(fake) as client:
        fake.answers = [status(503, {"error": {"message": "no engine"}})] * 50
        with pytest.raises(TeacherFailed, match=r"answered 503 \(no engine\) \(6 times\)$"):
            await client.score()
        assert client.pauses == list(PAUSES) and len(fake.asked) == len(PAUSES) + 1


async def test_one_that_nobody_listens_at() -> None:
    async with fake_teacher() as fake:
        client = Asking(fake)
    async with client.teacher:
        with pytest.raises(TeacherFailed, match=r"Cannot connect .* \(6 times\)$"):
            await client.score()
    assert client.pauses == list(PAUSES)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (status(400, {"error": {"message": "Token id 7 is out of vocabulary"}}), "400 (Token id 7 is out of"),
        (status(307, {}), "answered 307"),
        (body({"choices": [{"prompt_logprobs": [None] * 4}]}), "of 4 tokens, and was asked for 5"),
        (
            body({"choices": [{"prompt_logprobs": [None] * 5}]}),
            "has no log-probability of token 2, which is 5",
        ),
        (body(b"<html>"), "cannot be read"),
        (body({"choices": [{"text": "x"}]}), "has no prompt_logprobs"),
    ],
)
async def test_what_would_be_answered_alike_is_asked_once(answer: Any, words: str) -> None:
    async with fake_teacher() as fake, asking(fake) as client:
        fake.answers = [answer]
        with pytest.raises(TeacherFailed) as raised:
            await client.score()
        assert words in str(raised.value) and fake.url.removeprefix("http://") in str(raised.value)
        assert client.pauses == []
        # The next one is none the worse for it.
        np.testing.assert_array_equal(await client.score(), RIGHT)


async def test_a_time_limit_holds_for_each_request() -> None:
    async with fake_teacher() as fake, asking(fake, timeoutSeconds=0.2) as client:
        fake.answers = [never]
        async with asyncio.timeout(10):
            with pytest.raises(TeacherFailed, match=r"did not answer within 0\.2 s$"):
                await client.score()
        np.testing.assert_array_equal(await client.score(), RIGHT)


async def test_an_endless_answer_is_not_read_to_its_end() -> None:
    async with fake_teacher() as fake, asking(fake) as client:
        sent: list[int] = []
        fake.answers = [endless(sent)]
        async with asyncio.timeout(10):
            with pytest.raises(TeacherFailed, match="has more than 68096 bytes"):
                await client.score()
        assert sum(sent) < 16 * 2**20


async def test_no_more_at_a_time_than_the_job_allows() -> None:
    async with fake_teacher() as fake, asking(fake, concurrency=3) as client:
        three = asyncio.Barrier(3)

        async def together(request: web.Request) -> web.StreamResponse:
            await three.wait()
            return await fake.right(request)

        fake.answers = [together] * 12
        async with asyncio.timeout(10):
            await asyncio.gather(*[client.score() for _ in range(12)])
        assert fake.most_running == 3 and len(fake.asked) == 12


async def test_a_request_that_is_cancelled_makes_room() -> None:
    async with fake_teacher() as fake, asking(fake, concurrency=1) as client:
        there = asyncio.Event()

        async def told(request: web.Request) -> web.StreamResponse:
            there.set()
            return await never(request)

        fake.answers = [told]
        first = asyncio.create_task(client.score())
        async with asyncio.timeout(10):
            await there.wait()
            first.cancel()
            np.testing.assert_array_equal(await client.score(), RIGHT)


async def test_the_key_is_sent_and_never_told() -> None:
    async with fake_teacher() as fake:
        fake.key = SECRET
        async with asking(fake, key=SECRET) as client:
            np.testing.assert_array_equal(await client.score(), RIGHT)
            fake.answers = [status(400, {"error": f"no such key: {SECRET}"})]
            with pytest.raises(TeacherFailed) as raised:
                await client.score()
            assert SECRET not in str(raised.value) and "no such key: …" in str(raised.value)
        async with asking(fake) as client:
            with pytest.raises(TeacherFailed, match=r"answered 401 \(Unauthorized\)$") as raised:
                await client.score()
            assert raised.value.status == 401 and client.pauses == []


async def test_what_a_server_has() -> None:
    async with fake_teacher() as fake, asking(fake) as client:
        assert [each.id for each in await client.teacher.models()] == ["teacher"]
        with pytest.raises(TeacherFailed) as raised:
            await client.teacher.tokenize("ab")
        assert raised.value.status == 404
        fake.tokenize = lambda text: [ord(letter) for letter in text]
        assert await client.teacher.tokenize("ab") == [97, 98]


@pytest.mark.parametrize("answer", [status(503), hangs_up])
async def test_an_outage_is_told_probed_by_one_request_and_costs_no_response(answer: Any) -> None:
    async with fake_teacher() as fake, asking(fake, concurrency=16) as client:
        out = 30
        fake.answers = [answer] * out
        async with asyncio.timeout(60):
            found = await asyncio.gather(*[client.score() for _ in range(40)])
        assert all((each == RIGHT).all() for each in found)
        # Those that failed, and each response once.
        assert len(fake.asked) == out + 40
        assert client.teacher.ended == 40
        opened, closed = client.said
        host = fake.url.removeprefix("http://")
        assert opened.startswith(f"the teacher does not answer: {host}") and "after 10 min" in opened
        assert closed.startswith(f"the teacher at {host} answers again, after ")
        # All but those that were sent before.
        assert out - 16 <= client.teacher.probes <= out - FAILURES + 1


async def test_a_hang_is_told_and_costs_those_that_failed_before_it_was_known() -> None:
    async with fake_teacher() as fake, asking(fake, concurrency=FAILURES, timeoutSeconds=0.3) as client:

        async def hangs(request: web.Request) -> web.StreamResponse:
            return await (never if client.teacher.probes < 3 else fake.right)(request)

        fake.answers = [hangs] * 100
        async with asyncio.timeout(60):
            found = await asyncio.gather(*[client.score() for _ in range(30)], return_exceptions=True)
        failed = [each for each in found if isinstance(each, TeacherFailed)]
        assert len(failed) == FAILURES - 1
        assert all((each == RIGHT).all() for each in found if not isinstance(each, BaseException))
        assert len(client.said) == 2 and "did not answer within 0.3 s" in client.said[0]


async def test_a_server_that_is_away_for_too_long_ends_all() -> None:
    async with fake_teacher() as fake:
        client = Asking(fake, concurrency=4)
    async with client.teacher, asyncio.timeout(60):
        with pytest.raises(TeacherLost) as raised:
            await asyncio.gather(*[client.score() for _ in range(20)])
    host = fake.url.removeprefix("http://")
    words = (
        f"training.algorithm.distillation.teacher.server: 'teacher' at {host} has given no answer for 10 min"
    )
    assert str(raised.value).startswith(words) and "Cannot connect" in str(raised.value)
    assert 600.0 <= client.now <= 900.0


async def test_a_probe_that_is_cancelled_leaves_its_turn_to_another() -> None:
    async with fake_teacher() as fake, asking(fake, concurrency=FAILURES + 1) as client:
        probing = asyncio.Event()

        async def hangs(request: web.Request) -> web.StreamResponse:
            probing.set()
            return await never(request)

        fake.answers = [*[status(503)] * FAILURES, hangs]
        async with asyncio.timeout(30):
            scores = [asyncio.create_task(client.score()) for _ in range(FAILURES)]
            await probing.wait()
            other = asyncio.create_task(client.score())
            await asyncio.sleep(0)
            assert client.teacher.probes == 1 and len(fake.asked) == FAILURES + 1
            for each in scores:
                each.cancel()
            np.testing.assert_array_equal(await other, RIGHT)
