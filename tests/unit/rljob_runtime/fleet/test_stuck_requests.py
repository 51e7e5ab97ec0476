"""An engine goes on with what it runs, but for one request, or for one of the engines that it consists of.
What stands still leaves it and goes on elsewhere; the engine is started again only where it does not let go
of it, or has that again and again."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import pytest

from rljob_runtime.engines.fake import _Running
from rljob_runtime.engines.joint import JointEngine
from rljob_runtime.engines.protocol import Engine, EngineDied, PauseMode, WeightRef
from rljob_runtime.fleet.worker_spec import WorkerSpec
from rljob_runtime.site.nodes import RayNode
from tests.support.simulated.long_steps import LONGEST, SHORTEST, STALL_SECONDS, TRAIN_SECONDS, long_steps
from tests.support.simulated.scaled_job import PodEngine, ScaledJob

STEPS = 16
LEAVE_SECONDS = 180.0
LOOK_SECONDS = 60.0
MOST_SECONDS = 10 * STALL_SECONDS
RESPONSE_SECONDS = 80.0
"""The longest response, without a fault."""


def ends_with(engine: PodEngine, lost: dict[str, _Running]) -> None:
    """Whoever awaits these hears of it when the engine ends, as from any engine."""
    die = engine.die

    def died(reason: str) -> None:
        die(reason)
        for running in lost.values():
            if not running.future.done():
                running.future.set_exception(EngineDied(reason))

    engine.die = died  # type: ignore[method-assign]


def take_one(engine: PodEngine) -> tuple[str, dict[str, _Running]]:
    """One request runs no more, and the engine says nothing of it; its name, and what it was."""
    engine._settle()
    name = next(iter(engine._running))
    lost = {name: engine._running.pop(name)}
    ends_with(engine, lost)
    engine._change()
    return name, lost


def dropped(engine: PodEngine) -> str:
    """The engine has lost one of its requests, and knows nothing of it any more."""
    return take_one(engine)[0]


def let_go(engine: PodEngine, held: dict[str, _Running]) -> None:
    """Have aborts end what the engine holds back as well, as they end what runs."""
    abort = engine.abort

    async def aborted(request_id: str) -> None:
        if (running := held.pop(request_id, None)) is not None:
            engine._finish(running, aborted=True)
        await abort(request_id)

    engine.abort = aborted  # type: ignore[method-assign]


def dropped_below(engine: PodEngine) -> str:
    """What the engine hands its requests to has lost one: the engine still has it, and can end it."""
    name, lost = take_one(engine)
    let_go(engine, lost)
    return name


def answer_lost(engine: PodEngine) -> str:
    """It generates the response to its end, and the answer does not arrive."""
    engine._settle()
    name = next(iter(engine._running))
    lost = {name: engine._running[name]}
    ends_with(engine, lost)
    finish = engine._finish

    def finished(running: _Running, aborted: bool) -> None:
        if running.request.request_id != name:
            finish(running, aborted)

    engine._finish = finished  # type: ignore[method-assign]
    return name


@dataclass
class Watched:
    """A job that has ended."""

    job: ScaledJob
    engine: PodEngine
    seconds: float
    """How long it took until its first engine had no request any more that stood still."""
    replaced: list[str] = field(default_factory=list)
    """What was said of engines that were started again."""


class JointPod(JointEngine):
    """An engine of two that share a pod."""

    @property
    def alive(self) -> bool:
        return all(each.alive for each in self.engines)  # type: ignore[attr-defined]

    async def load(self, ref: WeightRef) -> None:
        # There is no folder.
        for each in self.engines:
            await each.load(ref)

    def die(self, reason: str) -> None:
        for each in self.engines:
            each.die(reason)  # type: ignore[attr-defined]


class JointJob(ScaledJob):
    """Each of its workers is an engine of two."""

    async def make(self, worker: WorkerSpec, node: RayNode) -> Engine:
        inside = []
        for number in range(2):
            core = await super().make(
                WorkerSpec(f"{worker.name}/{number}", worker.pool, 2, worker.events), node
            )
            assert isinstance(core, PodEngine)
            inside.append(core)
        joint = JointPod(worker.name, inside)
        self.cluster.engines[node.id][-2:] = [joint]  # type: ignore[list-item]
        return joint


def watched(
    fault: Callable[[PodEngine], str],
    masks: bool,
    in_flight: PauseMode = "keep",
    job_class: type[ScaledJob] = ScaledJob,
    steps: int = STEPS,
) -> Watched:
    """A job on whose first engine something happens in the middle of a step. It is ended by the test where
    the job does not do so in a long time."""
    seen: list[tuple[PodEngine, float]] = []

    async def script(job: ScaledJob) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(TRAIN_SECONDS * 1.25)
        (engine,) = job.cluster.working(job.serving[0])
        (slot,) = [each for each in job.pool.slots if each.engine is engine]
        while len(slot.requests) < 3:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.5)
        # A response has some tokens.
        await asyncio.sleep(5)
        name, began = fault(engine), clock()
        while name in slot.requests and clock() - began < MOST_SECONDS:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(1)
        seen.append((engine, clock() - began))
        if name in slot.requests:
            engine.die("the test is over")

    job = job_class(long_steps(script, steps, 8, masks, in_flight))
    job.run()
    ((engine, seconds),) = seen
    return Watched(job, engine, seconds, [said for said in job.said if "a replacement starts" in said])


def check_accounts(job: ScaledJob) -> None:
    """Nothing is lost or doubled."""
    assert sorted(group.uid for group in job.trained) == list(range(job.controller.total_groups))
    counts = job.rollouter.counts
    assert counts.dispatched == counts.accepted == len(job.trained) and counts.open == 0
    assert set(job.scored.values()) == {1}
    responses = [sample for group in job.trained for sample in group.samples]
    assert all(SHORTEST <= len(sample.tokens) <= LONGEST for sample in responses)


@pytest.mark.parametrize("in_flight", ["keep", "abort"])
@pytest.mark.parametrize("masks", [False, True], ids=["wait", "mask"])
def test_a_request_that_the_engine_can_end_goes_on_elsewhere_and_the_engine_stays(
    masks: bool, in_flight: PauseMode, caplog: pytest.LogCaptureFixture
) -> None:
    found = watched(dropped_below, masks, in_flight)
    job = found.job
    if in_flight == "keep":
        assert STALL_SECONDS - LOOK_SECONDS <= found.seconds <= 1.3 * STALL_SECONDS
        (told,) = [each.getMessage() for each in caplog.records if "without a token" in each.getMessage()]
        assert re.match(
            r"engine fast-0 has held request \S+#\d+ for 6\d\d s without a token while it generated others "
            r"\(spec\.training\.timeouts\.stallSeconds\): it goes on elsewhere", told
        )  # fmt: skip
        assert job.rollouter.counts.rerouted_requests == 1
    assert not found.replaced
    assert [len(engines) for engines in job.cluster.engines.values()] == [1, 1, 1]
    assert job.rollouter.counts.moved_requests == 0, "that is for responses whose engine was lost"
    ended = [step.ended for step in job.steps]
    assert max(after - before for before, after in pairwise(ended)) < TRAIN_SECONDS + 5
    check_accounts(job)


@pytest.mark.parametrize("masks", [False, True], ids=["wait", "mask"])
@pytest.mark.parametrize("fault", [dropped, answer_lost])
def test_an_engine_that_does_not_let_go_of_it_is_started_again(
    fault: Callable[[PodEngine], str], masks: bool
) -> None:
    found = watched(fault, masks)
    # It may have been generating for a while, where only the answer was lost.
    latest = RESPONSE_SECONDS + 1.3 * STALL_SECONDS + LEAVE_SECONDS + LOOK_SECONDS
    assert STALL_SECONDS + LEAVE_SECONDS - LOOK_SECONDS <= found.seconds <= latest
    (why,) = found.replaced
    assert re.match(
        r"engine fast-0 has held request \S+#\d+ for \d+ s without a token while it generated others, and "
        r"does not let go of it \(spec\.training\.timeouts\.stallSeconds\)", why
    )  # fmt: skip
    assert sorted(len(engines) for engines in found.job.cluster.engines.values()) == [1, 1, 2]
    check_accounts(found.job)


def core_hangs(engine: PodEngine, aborts: bool) -> str:
    """The first of the engines that it consists of takes requests, pauses and resumes, and generates nothing.
    `aborts`: whether it lets go of requests."""
    core: PodEngine = engine.engines[0]  # type: ignore[attr-defined]
    core._settle()
    core._paused = True

    async def resume() -> None:
        pass

    async def abort(request_id: str) -> None:
        await asyncio.get_running_loop().create_future()

    core.resume = resume  # type: ignore[method-assign]
    if not aborts:
        core.abort = abort  # type: ignore[method-assign]
    return next(iter(core._running))


@pytest.mark.parametrize("masks", [False, True], ids=["wait", "mask"])
def test_one_of_several_engines_that_are_one_hangs(masks: bool) -> None:
    found = watched(partial(core_hangs, aborts=False), masks, job_class=JointJob)
    # Looks in which the engine has nothing else to do, or has begun something since, do not all count.
    assert found.seconds <= 1.3 * STALL_SECONDS + LEAVE_SECONDS + 2 * LOOK_SECONDS
    (why,) = found.replaced
    assert "without a token while it generated others, and does not let go of it" in why
    check_accounts(found.job)


def test_one_of_several_engines_that_are_one_hangs_and_lets_go_of_requests() -> None:
    """What leaves it goes on; but it gets more, for it has room."""
    found = watched(partial(core_hangs, aborts=True), masks=False, job_class=JointJob, steps=40)
    assert found.seconds <= 1.3 * STALL_SECONDS
    (why,) = found.replaced
    assert "without a token while it generated others, as before with requests that left it for that" in why
    check_accounts(found.job)


def test_a_response_that_stood_still_everywhere_gets_more_time_at_each_stay() -> None:
    """A prompt that takes long: no engine tells of that. It is not taken out for ever."""
    stays: list[float] = []

    async def script(job: ScaledJob) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(TRAIN_SECONDS)
        uid = max(int(name.split(".")[0]) for slot in job.pool.slots for name in slot.requests)
        response = f"{uid}.0#"
        for engines in job.cluster.engines.values():
            for engine in engines:
                slow_prompt(engine, response)
        for _ in range(3):
            while not (at := stay(job, response)):  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(1)
            began = clock()
            while stay(job, response) == at:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(1)
            stays.append(clock() - began)

    def stay(job: ScaledJob, response: str) -> str | None:
        names = [name for slot in job.pool.slots for name in slot.requests if name.startswith(response)]
        return names[0] if names else None

    def slow_prompt(engine: PodEngine, response: str) -> None:
        admit, held = engine._admit, {}

        def admitted() -> None:
            for name in [name for name in engine._waiting if name.startswith(response)]:
                held[name] = engine._waiting.pop(name)
                asyncio.get_running_loop().call_later(2000, begins, name)
            for name in [name for name in engine._running if name.startswith(response) and name not in done]:
                held[name] = engine._running.pop(name)
                asyncio.get_running_loop().call_later(2000, begins, name)
            admit()

        done: set[str] = set()

        def begins(name: str) -> None:
            if (running := held.pop(name, None)) is not None:
                done.add(name)
                engine._settle()
                engine._running[name] = running
                engine._change()

        engine._admit = admitted  # type: ignore[method-assign]
        let_go(engine, held)
        engine._change()

    job = ScaledJob(long_steps(script, steps=40, max_staleness=30, masks=True))
    job.run()
    first, second, third = stays
    assert first <= 1.3 * STALL_SECONDS < 2 * STALL_SECONDS - LOOK_SECONDS <= second <= 2.5 * STALL_SECONDS
    assert 2000 < third < 2000 + 2 * RESPONSE_SECONDS
    assert not [said for said in job.said if "a replacement starts" in said]
    check_accounts(job)
