"""What the rollouter records of each stay on an engine, and of what routing believed before."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.rewards import Score
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.book import Book, RequestState
from rljob_runtime.routing.policy import Division, Expectation, Policy
from rljob_runtime.routing.requests import Move, RequestKey
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.analyse.event_files import Tally, read_steps
from rljob_runtime.trace.record.event_log import EventLog
from tests.support.simulated.watched_rollout import WatchedRollout


class Told(Policy):
    """Moves what a test puts into `told`; takes engine 1 for that of long responses."""

    def __init__(self) -> None:
        self.told: list[Move] = []

    @property
    def division(self) -> Division:
        return Division(frozenset({1}), 7.4)

    def expects(self, request: RequestState) -> Expectation:
        return Expectation(12.6, 7.4)

    def moves(self, book: Book, now: float) -> list[Move]:
        told, self.told = self.told, []
        return told


def stays(job: WatchedRollout) -> list[dict[str, Any]]:
    return [extra for name, _, _, extra in job.events.noted if name == "generate"]


def left(job: WatchedRollout) -> list[str | None]:
    return [extra.get("left") for extra in stays(job)]


@pytest.mark.parametrize("reason", ["long", "stolen"])
def test_a_stay_says_why_routing_ended_it(reason: Any) -> None:
    async def main() -> None:
        policy = Told()
        async with WatchedRollout((1, 1), 1, length=10, prompts=1, policy=policy) as job:
            await asyncio.sleep(4.5)
            policy.told = [Move(RequestKey(0, 0), 1, reason=reason)]
            job.rollouter.poke()
            await asyncio.sleep(10)
            assert [(e["tokens"], e["finish"], e.get("left"), e.get("for_long")) for e in stays(job)] == [
                (4, "abort", reason, None), (6, "stop", None, True),
            ]  # fmt: skip

    run_virtual(main())


def test_a_stay_on_an_engine_that_leaves_was_drained() -> None:
    async def main() -> None:
        async with WatchedRollout((1, 1), 1, length=10, prompts=1) as job:
            await asyncio.sleep(4.5)
            await job.pool.clear(job.slots[0], 60)
            await asyncio.sleep(10)
            assert left(job) == ["drained", None]

    run_virtual(main())


def test_a_stay_on_an_engine_that_dies_is_recorded_without_tokens() -> None:
    async def main() -> None:
        async with WatchedRollout((1, 1), 1, length=10, prompts=1) as job:
            await asyncio.sleep(4.5)
            job.engines[0].die("killed")
            await asyncio.sleep(11)
            assert left(job) == ["lost", None]
            (lost, *times), _ = [event[:3] for event in job.events.noted if event[0] == "generate"]
            assert (lost, times) == ("generate", [0.0, 4.5])
            assert [(e["tokens"], e["length"], e["finish"]) for e in stays(job)] == [
                (0, 0, "abort"), (10, 10, "stop"),
            ]  # fmt: skip

    run_virtual(main())


@pytest.mark.parametrize(("paused", "why"), [(True, "update"), (False, "engine")])
def test_what_routing_did_not_end_was_ended_by_an_update_or_by_the_engine(paused: bool, why: str) -> None:
    async def main() -> None:
        async with WatchedRollout((1,), 1, length=10, prompts=1) as job:
            await asyncio.sleep(4.5)
            (slot,) = job.slots
            if paused:
                job.pool.leave(slot)
            await slot.engine.abort(next(iter(slot.requests)))
            await asyncio.sleep(0.5)
            if paused:
                job.pool.join(slot)
            await asyncio.sleep(10)
            assert left(job) == [why, None]

    run_virtual(main())


def test_a_stay_says_which_weights_made_it() -> None:
    async def main() -> None:
        async with WatchedRollout((1,), 1, length=10, prompts=2) as job:
            await asyncio.sleep(14.5)
            (slot,), (engine,) = job.slots, job.engines
            await engine.pause("keep")
            await engine.load(WeightRef(3, "shm", ""))
            slot.version = 3
            await engine.resume()
            await asyncio.sleep(10)
            assert [extra["versions"] for extra in stays(job)] == [[0, 0], [0, 3]]

    run_virtual(main())


def test_scoring_a_group_says_its_rewards(tmp_path: Path) -> None:
    async def score(prompt: Any, responses: Any) -> Any:
        return [Score(0.5, seconds=0.25), Score(0.0, "timeout after 10 s", seconds=10, waited=1), Score(-1.0)]

    async def main() -> None:
        job = WatchedRollout((3,), 3, length=10, prompts=1)
        job.scores = score
        job.rollouter._events = events = EventLog(tmp_path, 0, "driver", "driver")
        async with job:
            await asyncio.sleep(20)
        events.flush()
        (found,) = [
            event for _, step in read_steps(tmp_path, Tally()) for event in step if event.event == "reward"
        ]
        assert found.extra == {
            "uid": 0, "rewards": [0.5, None, -1.0], "waited": [0, 1, 0], "ran": [0.25, 10, 0],
            "waiting": 1, "running": 10, "spread": 0.0,
        }  # fmt: skip

    run_virtual(main())


def test_what_was_believed_of_a_response_stays_with_it() -> None:
    async def main() -> None:
        async with WatchedRollout((1, 1), 1, length=10, prompts=1, policy=Told()) as job:
            seen: list[Any] = []

            async def score(prompt: Any, responses: Any) -> Any:
                seen.extend(responses)
                return [Score(1.0) for _ in responses]

            job.scores = score
            await asyncio.sleep(12)
            assert [(response.expected, response.cut) for response in seen] == [(12.6, 7.4)]

    run_virtual(main())


def test_what_is_believed_is_asked_before_the_first_token_alone() -> None:
    asked: list[int] = []

    class Counted(Adaptive):
        def expects(self, request: RequestState) -> Expectation:
            asked.append(request.tokens)
            return super().expects(request)

    async def main() -> None:
        async with WatchedRollout((1, 1), 1, length=10, prompts=1, policy=Counted(100)) as job:
            await asyncio.sleep(4.5)
            await job.pool.clear(job.slots[0], 60)
            await asyncio.sleep(10)
            assert asked == [0] and left(job) == ["drained", None]

    run_virtual(main())


def test_how_work_is_divided_is_recorded_until_the_end() -> None:
    async def main() -> WatchedRollout:
        async with WatchedRollout((1, 1), 1, length=10, prompts=1, policy=Told()) as job:
            await asyncio.sleep(30)
        return job

    job = run_virtual(main())
    (event,) = [event for event in job.events.noted if event[0] == "division"]
    assert event[1:] == (0.0, 30.0, {"engines": 1, "cut": 7})


def test_the_time_that_an_engine_gave_to_a_group_that_is_given_up_is_recorded() -> None:
    async def main() -> None:
        async with WatchedRollout((1,), 1, length=10, prompts=1) as job:
            await asyncio.sleep(4.5)
            await job.rollouter.hold("trainer restarted")
            (event,) = [event for event in job.events.noted if event[0] == "generate"]
            assert event[1:3] == (0.0, 4.5)
            assert (event[3]["finish"], event[3]["tokens"], "left" in event[3]) == ("cancelled", 0, False)

    run_virtual(main())
