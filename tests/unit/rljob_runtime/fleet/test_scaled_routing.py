"""A job that begins with one engine and says nothing of routing: once it is scaled, its pools differ in more
than their names, without a restart."""

import asyncio
from collections import Counter

import pytest

from rljob_api import RLJob
from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.engines.protocol import Request
from rljob_runtime.routing.choose import policy_of
from rljob_runtime.routing.policy import Policy
from tests.support.jobs import job as manifest
from tests.support.simulated.pods_job import LONG, PodsJob
from tests.support.simulated.simulated_job import Scenario

STEPS, GROUPS, SAMPLES = 24, 8, 4
SETTLED = 30.0
"""Seconds after a change until new pods have engines, and plans know what these cost."""
LEAST_IN_FLIGHT = 0.75
"""More than this part of the long responses does not end on the heavy engine by least in flight."""

Change = tuple[float, dict[str, int]]
"""Seconds after the change before, and the sizes that are asked for."""

CHANGES: dict[str, tuple[int, int, list[Change]]] = {
    "both pools grow": (1, 0, [(0, {"fast": 3, "heavy": 1})]),
    "a heavy pool comes, goes and comes again": (
        1, 0, [(0, {"heavy": 1}), (20, {"heavy": 0}), (10, {"heavy": 1})],
    ),
    "a fast pool comes beside the heavy engine": (0, 1, [(0, {"fast": 2})]),
}  # fmt: skip
"""Sizes at first, fast and heavy, and what is asked for then."""


def is_long(uid: int) -> bool:
    """Every eighth prompt, all its responses."""
    return uid % 8 == 0


def length(request: Request) -> int:
    return LONG if is_long(int(request.tokens[0])) else 20 + request.seed % 60


def own_policy(fast: int, heavy: int) -> Policy:
    """Of a job with these sizes that says nothing of routing and sets no maxReplicas."""
    changes = {
        "pools.fastRollout.replicas": fast,
        "pools.heavyRollout.replicas": heavy,
        "training.rollout.maxResponseTokens": LONG,
        "training.model.random.maxPositionEmbeddings": 4096,
        "training.schedule.promptsPerBatch": GROUPS,
    }
    return policy_of(RLJob.model_validate(manifest(changes)).spec)


def long_ones_on(job: PodsJob, pool: str) -> int:
    """How many long responses run in this pool."""
    return sum(
        is_long(int(running.request.tokens[0]))
        for slot in job.pool.slots
        if slot.pool == pool
        for running in slot.engine._running.values()  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize("case", CHANGES)
def test_a_job_that_is_scaled_has_its_long_responses_on_heavy_engines(case: str) -> None:
    """Of those that end after the changes; the heavy engine is four times as fast, and takes all of them."""
    fast, heavy, changes = CHANGES[case]
    settled: list[int] = []

    async def script(job: PodsJob) -> None:
        operating = asyncio.create_task(job.operate())
        try:
            for seconds, change in changes:
                await asyncio.sleep(seconds)
                while not long_ones_on(job, "heavy" if job.desired.heavy else "fast"):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                await job.carry_out(change)
            await asyncio.sleep(SETTLED)
            settled.append(len(job.trained))
        finally:
            operating.cancel()

    scenario = Scenario(
        engines=fast, heavy_engines=heavy, steps=STEPS, groups_per_step=GROUPS, samples_per_prompt=SAMPLES,
        max_response_tokens=LONG, max_running=16, length_of=length, policy=lambda: own_policy(fast, heavy),
        timing=FakeTiming(step_seconds=0.008, sequence_seconds=0.002, load_seconds=0.02),
        heavy_timing=FakeTiming(step_seconds=0.002, sequence_seconds=0.0005, load_seconds=0.02),
        faults=lambda job: job.shepherd(script(job)),
    )  # fmt: skip
    job = PodsJob(scenario)
    job.kv_tokens = 100_000
    job.run()

    (before,) = settled
    ended = Counter(
        sample.engine.split("-")[0]
        for group in job.trained[before:]
        if is_long(group.uid)
        for sample in group.samples
    )
    assert ended.total() >= 20
    assert ended["heavy"] > LEAST_IN_FLIGHT * ended.total()
    # Exactly once, whatever moved or was drained.
    assert sorted(group.uid for group in job.trained) == list(range(STEPS * GROUPS))
    counts = job.rollouter.counts
    assert counts.dispatched == counts.accepted == STEPS * GROUPS
    assert counts.moved_requests == counts.dropped_tokens == counts.open == 0
    assert all(
        len(sample.tokens) == (LONG if is_long(group.uid) else len(sample.tokens))
        for group in job.trained
        for sample in group.samples
    )
    job.pool.router.book.check()
