"""Pods that come, go, crash and are asked for at random cost no prompt and no order."""

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulated.scaled_job import DETECTION_SECONDS, ScaledJob
from tests.support.simulated.simulated_job import Scenario

MOST = 4


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


@settings(max_examples=10, deadline=None)
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
