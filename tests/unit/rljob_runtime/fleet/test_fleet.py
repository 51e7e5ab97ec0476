"""The fleet on a made-up cluster, in virtual time: pods come, go and are asked for."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.fleet.member import FleetTimes
from rljob_runtime.restarts import GivenUp
from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings
from rljob_runtime.trace.analyse.event_files import read_workers
from tests.support.simulated.scaled_job import (
    DETECTION_SECONDS,
    KV_TOKENS,
    MadeUpCluster,
    PodEngine,
    ScaledJob,
)
from tests.support.simulated.simulated_job import Scenario

Script = Callable[[ScaledJob], Coroutine[Any, Any, None]]


def run(script: Script, engines: int = 2, **scenario: Any) -> ScaledJob:
    """A job that takes about a minute, with what `script` does to it; every prompt is trained once."""
    ended = []

    async def whole(job: ScaledJob) -> None:
        await script(job)
        ended.append(True)

    settings = {
        "steps": 100,
        "groups_per_step": 4,
        "samples_per_prompt": 2,
        "in_flight": "keep",
        "length_of": lambda request: 200,
    } | scenario
    job = ScaledJob(Scenario(engines=engines, faults=lambda job: job.shepherd(whole(job)), **settings))
    job.run()
    assert ended, "the script was not at its end when the job was"
    assert sorted(group.uid for group in job.trained) == list(
        range(settings["steps"] * settings["groups_per_step"])
    )
    assert job.rollouter.counts.open == 0
    return job


def given_up(script: Script, **scenario: Any) -> str:
    """Why the job ended that this did to."""
    reasons: list[str] = []
    try:
        run(script, **scenario)
    except* GivenUp as group:
        reasons += map(str, group.exceptions)
    assert reasons, "it went on"
    return reasons[0]


async def shrunk_to_one(job: ScaledJob) -> str:
    """Some time after its start the job is to have one worker; the pod that is released."""
    await asyncio.sleep(5)
    job.ask(fast=1)
    await asyncio.sleep(1)
    (released,) = job.released
    return released


def test_a_smaller_pool_drains_the_cheapest_and_its_requests_go_on_elsewhere():
    async def script(job: ScaledJob) -> None:
        before = job.serving
        released = await shrunk_to_one(job)
        assert job.serving == [pod for pod in before if pod != released]
        job.cluster.remove(released)
        await asyncio.sleep(5)
        assert job.released == []

    job = run(script)
    assert job.rollouter.counts.continued_requests > 0
    assert job.rollouter.counts.moved_requests == 0


def test_a_larger_pool_gets_engines_at_the_newest_version_as_its_pods_come():
    versions = []

    async def script(job: ScaledJob) -> None:
        await asyncio.sleep(5)
        job.ask(fast=3)
        await asyncio.sleep(5)
        assert len(job.serving) == 1
        for count in (2, 3):
            pod = job.cluster.add()
            await asyncio.sleep(5)
            assert pod in job.serving and len(job.serving) == count
            versions.append(job.pool.oldest_version())

    run(script, engines=1)
    assert versions[0] > 0


def test_raised_again_before_the_pod_was_taken_it_comes_back():
    async def script(job: ScaledJob) -> None:
        released = await shrunk_to_one(job)
        job.status_is_written()
        job.ask(fast=2)
        await asyncio.sleep(5)
        assert job.released == []
        assert released not in job.serving, "the operator may still take it"
        job.status_is_written()
        await asyncio.sleep(5)
        assert released in job.serving

    run(script)


def test_a_pod_that_the_operator_removes_does_not_come_back():
    async def script(job: ScaledJob) -> None:
        released = await shrunk_to_one(job)
        job.ask(fast=2, doomed=frozenset([released]))
        await asyncio.sleep(5)
        assert job.released == [released]
        assert len(job.serving) == 1

    run(script)


def test_a_lost_pod_moves_its_requests_and_the_next_one_takes_its_place():
    async def script(job: ScaledJob) -> None:
        # More often than a worker may fail in a row.
        for _ in range(6):
            lost = job.serving[0]
            job.cluster.remove(lost)
            await asyncio.sleep(DETECTION_SECONDS + 5)
            assert len(job.serving) == 1
            job.cluster.add()
            await asyncio.sleep(5)
            assert len(job.serving) == 2

    job = run(script, steps=400)
    assert job.rollouter.counts.moved_requests > 0
    assert any("is gone" in text for text in job.said)


def test_a_crashed_engine_is_replaced_on_its_pod():
    async def script(job: ScaledJob) -> None:
        await asyncio.sleep(5)
        pod = job.serving[0]
        job.cluster.working(pod)[0].die("it crashed")
        await asyncio.sleep(5)
        assert pod in job.serving
        assert len(job.cluster.engines[pod]) == 2

    run(script)


def test_an_engine_that_keeps_crashing_ends_the_job():
    async def script(job: ScaledJob) -> None:
        pod = job.serving[0]
        while True:
            for engine in job.cluster.working(pod):
                engine.die("it crashed")
            await asyncio.sleep(3)

    assert "rollout worker fast-" in given_up(script)


@pytest.mark.parametrize("at_work", [False, True], ids=["at its start", "at its first request"])
@pytest.mark.parametrize(
    ("why", "starts"),
    [
        ("engine: vLLM did not start: ValueError: heads of 48", 2),
        ("engine: vLLM did not start: OutOfMemoryError: CUDA out of memory", 4),
    ],
    ids=["of settings", "of memory"],
)
def test_an_engine_that_ends_in_the_same_way_before_its_first_token(
    why: str, starts: int, at_work: bool
) -> None:
    """With a new pod's worker, whose first engine it is."""
    counted = []

    async def script(job: ScaledJob) -> None:
        await asyncio.sleep(5)
        before = job.cluster.starts
        if at_work:
            job.cluster.working(job.serving[0])[0].cluster = MadeUpCluster()
            job.cluster.wrong_at_work = why
        else:
            job.cluster.wrong_at_start = why
        job.cluster.add()
        job.ask(fast=2)
        try:
            await asyncio.sleep(1000)
        finally:
            counted.append(job.cluster.starts - before)

    assert given_up(script, engines=1).endswith(why)
    assert counted == [starts]


def test_an_engine_that_has_generated_has_its_whole_budget() -> None:
    async def script(job: ScaledJob) -> None:
        await asyncio.sleep(5)
        job.cluster.wrong_at_start = "ValueError: heads of 48"
        job.cluster.working(job.serving[0])[0].die("it crashed")
        await asyncio.sleep(1000)

    assert "failed 4 times in a row" in given_up(script, engines=1)


def test_a_worker_that_only_starts_is_given_up_when_it_is_not_wanted_any_more():
    async def script(job: ScaledJob) -> None:
        job.start_seconds = 50.0
        job.ask(fast=2)
        pod = job.cluster.add()
        await asyncio.sleep(10)
        job.ask(fast=1)
        await asyncio.sleep(1)
        assert job.released == [pod]
        assert job.cluster.engines[pod] == []

    run(script, engines=1)


def test_surplus_pods_are_offered_at_once():
    async def script(job: ScaledJob) -> None:
        pod = job.cluster.add()
        await asyncio.sleep(5)
        assert job.released == [pod]

    run(script, engines=1)


def test_a_version_that_could_not_be_had_is_asked_for_again():
    """Nobody else generates, so that no other version comes."""

    async def script(job: ScaledJob) -> None:
        await asyncio.sleep(5)
        job.cluster.working(job.serving[0])[0].die("it crashed")
        # By then all groups that are under way are trained.
        job.start_seconds, job.cluster.unreachable = 20.0, 2
        await asyncio.sleep(15)
        assert job.serving == []
        await asyncio.sleep(100)
        assert len(job.serving) == 1 and job.cluster.unreachable == 0

    run(script, engines=1)


def test_an_engine_that_is_never_ready_ends_the_job_and_names_the_field():
    async def script(job: ScaledJob) -> None:
        await asyncio.sleep(5)
        job.start_seconds = 5000.0
        job.cluster.working(job.serving[0])[0].die("it crashed")
        await asyncio.sleep(10_000)

    reason = "it was not ready within 1800 s (spec.training.timeouts.startSeconds)"
    assert given_up(script, engines=1).endswith(reason)


class LateJob(ScaledJob):
    """Looks at its pods after everybody else who waits for them."""

    async def _follow(self) -> None:
        await asyncio.sleep(1)
        await super()._follow()


def test_an_engine_may_take_longer_to_start_than_a_pod_to_come():
    async def script() -> None:
        assert asyncio.get_running_loop().time() > 1795

    job = LateJob(Scenario(engines=1, faults=lambda job: job.shepherd(script())))
    job.start_seconds, job.times = 1795.0, FleetTimes(pods=60.0)
    job.run()
    assert len(job.steps) == job.scenario.steps


def test_an_engine_that_dies_while_it_loads_its_first_weights_is_started_again():
    async def script(job: ScaledJob) -> None:
        await asyncio.sleep(5)
        assert job.plan.newest is not None
        load, deaths = PodEngine.load, []

        async def dying(engine: PodEngine, ref: WeightRef) -> None:
            if not deaths and engine in job.cluster.engines[pod]:
                deaths.append(engine.name)
                engine.die("it crashed")
            await load(engine, ref)

        pod = job.cluster.add()
        PodEngine.load = dying  # type: ignore[method-assign]
        try:
            job.ask(fast=2)
            await asyncio.sleep(5)
        finally:
            PodEngine.load = load  # type: ignore[method-assign]
        assert len(deaths) == 1 and len(job.cluster.engines[pod]) == 2
        assert pod in job.serving

    run(script, engines=1)


def test_routing_knows_how_far_responses_are_and_how_much_an_engine_holds():
    """Responses of 200 tokens take 2 s; until the first ends routing is at most half a second behind."""
    behind = []

    async def script(job: ScaledJob) -> None:
        while not any(slot.running for slot in job.pool.slots):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        for _ in range(15):
            await asyncio.sleep(0.1)
            states = list(job.pool.router.book.engines.values())
            assert {state.shape.kv_tokens for state in states} == {KV_TOKENS}
            known = sum(request.tokens for state in states for request in state.running.values())
            generated = [(await slot.engine.load_snapshot()).generated_tokens for slot in job.pool.slots]
            behind.append((sum(generated) - known) / sum(len(state.running) for state in states))

    run(script, steps=20)
    # A step takes 10 ms: half a second is 50 tokens of each request.
    assert min(behind) >= 0 and max(behind) <= 50
    assert sum(before > after for before, after in pairwise(behind)) == 3, "the news of 1.5 seconds"


def test_a_run_records_how_much_an_engine_holds(tmp_path):
    """Here all record as one worker."""
    job = ScaledJob(Scenario(engines=1, steps=3, faults=lambda job: job.shepherd(asyncio.sleep(0))))
    job.events_folder = tmp_path
    job.run()
    assert [worker.kv_tokens for worker in read_workers(tmp_path)] == [KV_TOKENS]


def test_engines_report_as_often_as_their_number_allows_however_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that were there before others came report less often too, and more often when these are gone."""
    monkeypatch.setattr("rljob_runtime.fleet.reporting._REPORTS_PER_SECOND", 1)

    def seconds(job: ScaledJob) -> list[float]:
        return [engine._reports._seconds for pod in job.serving for engine in job.cluster.working(pod)]

    async def script(job: ScaledJob) -> None:
        await asyncio.sleep(5)
        assert seconds(job) == [1.0]
        job.cluster.add(), job.cluster.add()
        job.ask(fast=3)
        await asyncio.sleep(5)
        assert seconds(job) == [3.0] * 3
        job.ask(fast=1)
        await asyncio.sleep(5)
        assert seconds(job) == [1.0]

    run(script, engines=1)


@pytest.mark.parametrize("shrunk", ["fast", "heavy"])
def test_with_probes_a_pool_may_be_scaled_to_nothing_and_back(shrunk: str) -> None:
    """One response in eight is long; while a pool has no engine the other one generates everything."""

    def heavy_tokens(job: ScaledJob) -> int:
        return job.rollouter.counts.heavy_tokens

    async def script(job: ScaledJob) -> None:
        await asyncio.sleep(20)
        assert heavy_tokens(job) > 0, "the longest groups go to the heavy pool"
        job.ask(**{shrunk: 0})
        await asyncio.sleep(5)
        assert {pod.partition("-")[0] for pod in job.serving} == {"fast", "heavy"} - {shrunk}
        for pod in job.released:
            job.cluster.remove(pod)
        before, trained = heavy_tokens(job), len(job.trained)
        await asyncio.sleep(30)
        assert len(job.trained) > trained
        assert (heavy_tokens(job) > before) == (shrunk == "fast")
        job.status_is_written()
        job.ask(**{shrunk: 1})
        job.cluster.add(shrunk)
        await asyncio.sleep(5)
        before = heavy_tokens(job)
        await asyncio.sleep(30)
        assert heavy_tokens(job) > before

    job = run(
        script, engines=2, heavy_engines=1, max_running=16, groups_per_step=8, samples_per_prompt=4,
        length_of=lambda request: 900 if request.seed % 8 == 0 else 50 + request.seed % 100,
        policy=lambda: ProbePolicy(ProbeSettings(8)),
    )  # fmt: skip
    counts = job.rollouter.counts
    assert 0 < counts.restarted_requests == counts.rerouted_requests and counts.dropped_tokens > 0
    assert counts.moved_requests == 0
