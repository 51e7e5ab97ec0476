"""Pods that come, go, crash and are asked for at random cost no prompt and no order."""

import asyncio
import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.fixed import Adjacent
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings
from tests.support.depth import examples
from tests.support.simulated.scaled_job import DETECTION_SECONDS, ScaledJob
from tests.support.simulated.simulated_job import Scenario

MOST = 4
LONG = 3000
"""Tokens of one response in sixteen, at most."""

POLICIES: dict[str, Callable[[], Policy]] = {
    "least in flight": Policy,
    "adaptive": lambda: Adaptive(LONG),
    "probe": lambda: ProbePolicy(ProbeSettings(4)),
    "probe, moves": lambda: ProbePolicy(ProbeSettings(4, restart=False)),
    "adjacent": lambda: Adjacent(4),
}


async def weather(job: ScaledJob, seed: int) -> None:
    """Some minutes of change, then calm."""
    rng = random.Random(seed)
    for _ in range(12):
        await asyncio.sleep(rng.expovariate(1 / 4))
        pods = await job.cluster.read()
        match rng.choice(["desired", "desired", "add", "remove", "crash", "take"]):
            case "desired":
                job.ask(fast=rng.randint(1, MOST))
            case "add" if len(pods) < MOST:
                job.cluster.add()
            case "remove" if len(pods) > 1:
                job.cluster.remove(rng.choice(pods).id)
            case "crash":
                for engine in job.cluster.working(rng.choice(pods).id):
                    if rng.random() < 0.3:
                        engine.die("it crashed")
            case "take":
                for pod in job.released:
                    job.cluster.remove(pod)
    await asyncio.sleep(4 * DETECTION_SECONDS)
    pods = await job.cluster.read()
    assert len(job.serving) == min(job.desired.fast, len(pods))
    assert len(job.released) == max(0, len(pods) - job.desired.fast)
    assert not set(job.released) & set(job.serving)


@settings(max_examples=examples(10), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    in_flight=st.sampled_from(["keep", "abort", "wait", None]),
    staleness=st.sampled_from([0, 1, 3]),
)
def test_every_prompt_is_trained_once(seed, in_flight, staleness):
    def faults(job: ScaledJob) -> "asyncio.Task[None]":
        return job.shepherd(weather(job, seed))

    scenario = Scenario(
        steps=120, groups_per_step=4, samples_per_prompt=2, max_staleness=staleness, in_flight=in_flight,
        engines=2, max_running=8, length_of=lambda request: request.seed % 300, train_seconds=0.5,
        faults=faults,
    )  # fmt: skip
    job = ScaledJob(scenario).run()

    assert sorted(group.uid for group in job.trained) == list(range(scenario.steps * 4))
    counts = job.rollouter.counts
    assert (counts.open, counts.cancelled) == (0, {})
    assert all(step.staleness_max <= job.controller.bound.versions for step in job.steps)


async def both(job: ScaledJob, seed: int) -> None:
    """The same with two pools, each of which may be without a worker for a while, or both."""
    rng = random.Random(seed)
    for _ in range(15):
        await asyncio.sleep(rng.expovariate(1 / 4))
        pods = await job.cluster.read()
        match rng.choice(["one", "one", "both", "add", "remove", "crash", "take", "written"]):
            case "one":
                job.ask(**{rng.choice(["fast", "heavy"]): rng.randint(0, 3)})
            case "both":
                job.ask(fast=rng.randint(0, 3), heavy=rng.randint(0, 3))
            case "add" if len(pods) < 6:
                job.cluster.add(rng.choice(["fast", "heavy"]))
            case "remove" if pods:
                job.cluster.remove(rng.choice(pods).id)
            case "crash" if pods:
                for engine in job.cluster.working(rng.choice(pods).id):
                    if rng.random() < 0.3:
                        engine.die("it crashed")
            case "take":
                for pod in job.released:
                    job.cluster.remove(pod)
            case "written":
                job.status_is_written()
    fast, heavy = rng.choice([(1, 0), (2, 1), (0, 1), (3, 3)])
    job.ask(fast=fast, heavy=heavy)
    for pool in ("fast", "heavy"):
        mine = [node for node in await job.cluster.read() if node.id.startswith(pool)]
        for _ in range(job.desired.workers(pool) - len(mine)):
            job.cluster.add(pool)
    # A pod that is wanted again after it was offered comes back with the second write.
    for _ in range(6):
        await asyncio.sleep(DETECTION_SECONDS)
        job.status_is_written()
    pods = await job.cluster.read()
    for pool in ("fast", "heavy"):
        there = sum(node.id.startswith(pool) for node in pods)
        wanted = job.desired.workers(pool)
        assert sum(pod.startswith(pool) for pod in job.serving) == min(wanted, there)
        assert sum(pod.startswith(pool) for pod in job.released) == max(0, there - wanted)


@settings(max_examples=examples(6), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(list(POLICIES)),
    in_flight=st.sampled_from(["keep", "abort", "wait", None]),
    staleness=st.sampled_from([0, 1, 3]),
    heavy=st.integers(0, 2),
)
def test_every_prompt_is_trained_once_whatever_both_pools_do(seed, policy, in_flight, staleness, heavy):
    ended = []

    async def whole(job: ScaledJob) -> None:
        await both(job, seed)
        ended.append(True)

    scenario = Scenario(
        steps=200, groups_per_step=4, samples_per_prompt=3, max_staleness=staleness, in_flight=in_flight,
        engines=2, heavy_engines=heavy, max_running=6, policy=POLICIES[policy], max_response_tokens=LONG,
        length_of=lambda request: request.seed % (200 if request.seed % 16 else LONG),
        timing=FakeTiming(step_seconds=0.01, sequence_seconds=0.001, load_seconds=0.02),
        faults=lambda job: job.shepherd(whole(job)),
    )  # fmt: skip
    job = ScaledJob(scenario).run()

    assert ended, "the changes were not over when the job was"
    assert sorted(group.uid for group in job.trained) == list(range(scenario.steps * 4))
    counts = job.rollouter.counts
    assert (counts.open, counts.cancelled) == (0, {})
    assert all(step.staleness_max <= job.controller.bound.versions for step in job.steps)
    job.pool.router.book.check()
