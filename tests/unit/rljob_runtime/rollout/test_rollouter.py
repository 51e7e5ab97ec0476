"""From prompts to groups, in virtual time: when a prompt is dispatched, and how its group ends."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from rljob_runtime.groups.responses import Response
from rljob_runtime.rewards import Score
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.book import Book, EngineState
from rljob_runtime.samples import Prompt, decode_group, encode
from rljob_runtime.simulate.virtual_loop import run_virtual
from tests.support.simulated.watched_rollout import WatchedRollout


@pytest.mark.parametrize(
    ("limits", "samples", "admitted", "dispatched"),
    [
        ((1,), 1, 100, 1),
        ((3,), 1, 100, 3),
        ((2,), 2, 100, 1),
        ((3,), 2, 100, 2),
        ((4,), 2, 100, 2),
        ((5,), 4, 100, 2),
        ((1, 1, 1), 2, 100, 2),
        ((64,), 2, 5, 5),
        ((64, 64), 8, 100, 16),
    ],
)
@pytest.mark.parametrize("pokes", [0, 20], ids=["left alone", "woken in every turn"])
def test_as_many_prompts_are_dispatched_as_engines_can_begin(
    limits: tuple[int, ...], samples: int, admitted: int, dispatched: int, pokes: int
) -> None:
    """Woken while the newest requests have yet to ask for their engines, it dispatches none either."""

    async def main() -> None:
        async with WatchedRollout(limits, samples, admitted=admitted) as job:
            for _ in range(pokes):
                job.rollouter.poke()
                await asyncio.sleep(0)
            await asyncio.sleep(5)
            assert job.dispatched == dispatched
            assert job.fetched == list(range(dispatched)), "in order"

    run_virtual(main())


def test_a_prompt_is_dispatched_as_soon_as_an_engine_can_begin() -> None:
    async def main() -> None:
        async with WatchedRollout((2,), 2, length=10) as job:
            seen = []
            for second in (5, 10.5, 15, 20.5):
                await asyncio.sleep(second - asyncio.get_running_loop().time())
                seen.append((job.dispatched, len(job.groups)))
            assert seen == [(1, 0), (2, 1), (2, 1), (3, 2)]

    run_virtual(main())


class Planning(Adaptive):
    """Notes how many groups there are whenever it may plan."""

    def __init__(self) -> None:
        super().__init__(100)
        self.seen: list[int] = []

    def rescored(self, book: Book, now: float) -> Iterable[EngineState]:
        self.seen.append(len(book.groups))
        return super().rescored(book, now)


def test_the_first_plan_knows_all_groups_that_the_step_awaits() -> None:
    """However few requests engines run at a time, and however many groups a step has."""

    async def main() -> None:
        policy = Planning()
        async with WatchedRollout((1, 1), 2, admitted=300, prompts=1000, policy=policy) as job:
            await asyncio.sleep(5)
            assert job.dispatched == 300
            assert next(count for count in policy.seen if count) == 300

    run_virtual(main())


def test_all_prompts_then_nothing() -> None:
    async def main() -> None:
        async with WatchedRollout((4,), 2, prompts=3) as job:
            await asyncio.sleep(100)
            assert sorted(group.uid for group in job.groups) == [0, 1, 2]
            counts = job.rollouter.counts
            assert (counts.dispatched, counts.accepted, counts.open) == (3, 3, 0)

    run_virtual(main())


def test_no_engine_no_prompt() -> None:
    async def main() -> None:
        async with WatchedRollout(()) as job:
            await asyncio.sleep(5)
            assert job.dispatched == 0
            job.add(2)
            await asyncio.sleep(5)
            assert job.dispatched == 1

    run_virtual(main())


def test_waiting_for_admission_while_engines_have_room_is_recorded() -> None:
    async def main() -> None:
        async with WatchedRollout((4,), 2, length=10, admitted=1) as job:
            await asyncio.sleep(30)
            job.controller.finished([0])
            job.rollouter.poke()
            await asyncio.sleep(0.5)
            waits = [event[1:3] for event in job.events.noted if event[0] == "admission_wait"]
            assert job.dispatched == 1 and waits == [], "S = 0 admits the next version's groups only"
            job.pool.leave(job.slots[0])
            job.pool.loaded(job.slots[0], 1)
            job.pool.join(job.slots[0])
            await asyncio.sleep(0.5)
            waits = [event[1:3] for event in job.events.noted if event[0] == "admission_wait"]
            # From the moment in which the first group's two requests had asked, two more could have begun.
            assert job.dispatched == 2 and waits == [(0.0, 30.5)]

    run_virtual(main())


def test_a_reward_that_failed_is_counted_by_its_kind() -> None:
    async def main() -> None:
        async with WatchedRollout((6,), 6, prompts=1) as job:

            async def scores(prompt: Prompt, responses: Sequence[Response]) -> list[Score]:
                return [
                    Score(
                        0.5, parts={"correct": 0.5}, metrics={"depth": None}, complaints={"parts.x": "none"}
                    ),
                    Score(0.0, "timeout after 3 s"),
                    Score(0.0, "error: ValueError"),
                    Score(0.0, "error: KeyError"),
                    Score(0.0, "reward worker died (signal SIGKILL)"),
                    Score(0.0, "teacher: teacher:8000 answered 503 (6 times)"),
                ]

            job.scores = scores
            await asyncio.sleep(20)
            samples = job.groups[0].samples
            assert [sample.reward for sample in samples] == [0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
            assert [sample.failure is None for sample in samples] == [True] + [False] * 5
            first = samples[0]
            assert (first.reward_parts, first.reward_metrics) == ({"correct": 0.5}, {"depth": None})
            assert [sample.reward_values_failed for sample in samples] == [1, 0, 0, 0, 0, 0]
            assert job.rollouter.counts.rejected == {
                "timeout": 1, "error": 2, "reward worker died": 1, "teacher": 1,
            }  # fmt: skip

    run_virtual(main())


def test_what_a_teacher_said_travels_with_the_sample() -> None:
    async def main() -> None:
        async with WatchedRollout((2,), 2, prompts=1) as job:

            async def scores(prompt: Prompt, responses: Sequence[Response]) -> list[Score]:
                said = [np.full(len(each.tokens), -0.5, np.float32) for each in responses]
                return [
                    Score(1.0, teacher_log_probs=said[0], teacher_seconds=2.0),
                    Score(0.0, "teacher: 503"),
                ]

            job.scores = scores
            await asyncio.sleep(20)
            first, second = decode_group(encode(job.groups[0])).samples
            assert first.teacher_log_probs is not None and second.teacher_log_probs is None
            assert first.teacher_log_probs.tolist() == [-0.5] * len(first.tokens)

    run_virtual(main())


def test_a_put_group_is_ready_and_wakes_whoever_waits_for_groups() -> None:
    async def main() -> None:
        async with WatchedRollout((1,), 1, length=10, prompts=1) as job:
            await job.rollouter.group_ready.wait()
            assert asyncio.get_running_loop().time() == 10
            assert (job.controller.ready, job.controller.outstanding) == (1, 1)
            assert job.groups[0].dispatch_version == 0

    run_virtual(main())


@pytest.mark.parametrize("where", ["prompt", "scores", "engine"])
def test_an_unexpected_error_ends_the_run(where: str) -> None:
    async def main() -> None:
        job = WatchedRollout((2,), 2)

        async def broken(*_: Any) -> Any:
            raise ZeroDivisionError(where)

        def broken_now(*_: Any) -> Any:
            raise ZeroDivisionError(where)

        if where == "prompt":
            job.rollouter._prompts = broken_now
        elif where == "scores":
            job.scores = broken
        else:
            job.engines[0].submit = broken
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.timeout(60):
                await job.rollouter.run()
        assert caught.group_contains(ZeroDivisionError)

    run_virtual(main())
