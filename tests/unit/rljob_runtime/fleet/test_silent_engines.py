"""One engine of several falls silent: it takes requests, pauses and resumes, and generates nothing. It alone
is started again, while steps go on; what it ran goes on elsewhere, and every prompt is trained once."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from rljob_runtime.driver.silent_engines import SilentEngines
from rljob_runtime.engines.fake import FakeEngine, FakeTiming
from rljob_runtime.engines.protocol import LoadSnapshot, PauseMode, Request
from rljob_runtime.restarts import GivenUp, RestartBudget
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.routing.requests import RequestKey
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.record.event_log import EventLog
from tests.support.simulated.long_steps import STALL_SECONDS, TRAIN_SECONDS, long_steps
from tests.support.simulated.scaled_job import PodEngine, ScaledJob

STEPS = 12
NO_EVENTS = EventLog(None, 0, "driver", "driver")


@dataclass(frozen=True)
class Watched:
    """A job that has ended."""

    job: ScaledJob
    seconds: float
    """How long its first engine lived after it had become something else."""


def stands_still(engine: PodEngine) -> None:
    """It says that it has generated what it had, whenever it is asked."""

    async def resume() -> None:
        pass

    engine._settle()
    engine._paused = True
    engine.resume = resume  # type: ignore[method-assign]


def says_nothing(engine: PodEngine) -> None:
    """Nor does it say what it has generated."""
    stands_still(engine)

    async def load_snapshot() -> LoadSnapshot:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    engine.load_snapshot = load_snapshot  # type: ignore[method-assign]


def repeats_itself(engine: PodEngine) -> None:
    """And it reports the same progress again and again."""
    last = {name: running.done for name, running in engine._running.items()}
    stands_still(engine)
    engine._reports._counts = lambda: last
    engine._reports.wake()


SILENCES: dict[str, Callable[[PodEngine], None]] = {
    "stands still": stands_still,
    "says nothing": says_nothing,
    "repeats itself": repeats_itself,
}


def long_job(
    begins: Callable[[PodEngine], None], masks: bool, in_flight: PauseMode, seconds: float
) -> Watched:
    """A job whose first engine becomes something else in the middle of a step, with requests on it. It is
    ended by the test where the job does not do so within so many seconds."""
    times: list[float] = []

    async def script(job: ScaledJob) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(TRAIN_SECONDS * 1.25)
        (engine,) = job.cluster.working(job.serving[0])
        while not engine._running:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.5)
        begins(engine)
        times.append(clock())
        while engine.alive and clock() - times[0] < seconds:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(1)
        times.append(clock())
        engine.die("the test is over")

    job = ScaledJob(long_steps(script, STEPS, 4, masks, in_flight))
    job.run()
    return Watched(job, times[1] - times[0])


@pytest.mark.parametrize("in_flight", ["keep", "abort"])
@pytest.mark.parametrize("masks", [False, True], ids=["bound 4", "mask"])
@pytest.mark.parametrize("silence", SILENCES)
def test_it_alone_is_started_again_while_steps_go_on(silence: str, masks: bool, in_flight: PauseMode) -> None:
    watched = long_job(SILENCES[silence], masks, in_flight, seconds=1e6)
    job = watched.job
    assert STALL_SECONDS < watched.seconds <= 1.2 * STALL_SECONDS
    (why,) = [said for said in job.said if "a replacement starts" in said]
    assert re.match(r"engine fast-0 has requests and generated nothing for 6\d\d s, while others", why)
    assert "(spec.training.timeouts.stallSeconds)" in why
    assert sorted(len(engines) for engines in job.cluster.engines.values()) == [1, 1, 2]
    # No step has waited for it.
    ended = [step.ended for step in job.steps]
    assert max(after - before for before, after in pairwise(ended)) < TRAIN_SECONDS + 5
    # Nothing is lost or doubled.
    assert sorted(group.uid for group in job.trained) == list(range(job.controller.total_groups))
    counts = job.rollouter.counts
    assert counts.dispatched == counts.accepted == len(job.trained) and counts.open == 0
    assert set(job.scored.values()) == {1}
    assert counts.moved_requests > 0


@pytest.mark.parametrize("masks", [False, True], ids=["bound 4", "mask"])
def test_one_that_is_slow_and_moves_is_left_alone(masks: bool) -> None:
    """A token in five minutes."""

    def slow(engine: PodEngine) -> None:
        engine._settle()
        engine._timing = FakeTiming(step_seconds=STALL_SECONDS / 2, load_seconds=0.02)
        engine._change()

    watched = long_job(slow, masks, "keep", seconds=4 * STALL_SECONDS)
    assert watched.seconds >= 4 * STALL_SECONDS
    (why,) = [said for said in watched.job.said if "a replacement starts" in said]
    assert "the test is over" in why


@pytest.mark.parametrize("worked", [0.0, 1500.0], ids=["from its start", "after it has worked"])
@pytest.mark.parametrize("in_flight", ["keep", "wait", None])
def test_one_whose_every_engine_falls_silent_ends_the_job_unless_each_has_worked(
    in_flight: PauseMode | None, worked: float
) -> None:
    """`worked`: for how many seconds each engine on its pod generates before it falls silent. `in_flight`:
    what becomes of requests at an update; None: each engine loads when it has finished what it runs."""
    starts = 0

    async def falls_silent(job: ScaledJob) -> None:
        nonlocal starts
        pod = job.serving[0]
        while True:
            while not (working := job.cluster.working(pod)):  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(1)
            starts += 1
            (engine,) = working
            await asyncio.sleep(worked)
            while engine.alive and not engine._running:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)
            stands_still(engine)
            while engine.alive:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(1)

    job = ScaledJob(long_steps(falls_silent, steps=60, max_staleness=4, in_flight=in_flight))
    reasons: list[str] = []
    try:
        job.run()
    except* GivenUp as group:
        reasons += map(str, group.exceptions)
    if worked:
        assert not reasons and starts > 1 + RestartBudget.limit
    else:
        (why,) = reasons
        assert why.startswith("rollout worker fast-0 failed 4 times in a row;")
        assert "generated nothing for" in why and "spec.training.timeouts.stallSeconds" in why
        assert starts == 1 + RestartBudget.limit


def test_where_the_whole_job_stands_still_those_that_were_just_given_requests_are_left_alone() -> None:
    async def main() -> tuple[list[str], list[str]]:
        pool = EnginePool(lambda: 0.0, lambda slot, why: None)
        slots = [
            EngineSlot(FakeEngine(f"fast-{number}", lambda request: 10), "fast", 8, NO_EVENTS)
            for number in range(3)
        ]
        silent, clock = SilentEngines(pool, STALL_SECONDS), asyncio.get_running_loop().time
        for slot in slots:
            await slot.engine.start(0)
            pool.add(slot)
            pool.join(slot)

        def give(slot: EngineSlot) -> None:
            request = Request(f"{slot.number}.0#1", np.zeros(4, np.int32), 10, seed=0)
            pool.submitted(slot, RequestKey(slot.number, 0), request)
            slot.occupy(clock(), 0)

        def stuck() -> list[str]:
            return [slot.engine.name for slot in silent.stuck()]

        give(slots[0])
        found = stuck()
        for _ in range(3):
            await silent.look(clock)
            await asyncio.sleep(STALL_SECONDS / 10)
        give(slots[1])
        return found, stuck()

    # At first nothing is known of any, and whoever holds requests may be the cause.
    assert run_virtual(main()) == (["fast-0"], ["fast-0"])
