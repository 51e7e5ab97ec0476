"""Pools change their sizes while long responses run: pods are free within moments, and no token is lost."""

import asyncio
from collections.abc import Callable

import pytest

from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.engines.protocol import PauseMode, Request
from rljob_runtime.groups.responses import response_seed
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.fixed import Interleaved
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings
from tests.support.simulated.pods_job import LONG, PodsJob, length, long_ones
from tests.support.simulated.simulated_job import Scenario

STEPS, GROUPS, SAMPLES = 12, 4, 4
POLICIES: dict[str, Callable[[], Policy]] = {
    "adaptive": lambda: Adaptive(LONG),
    "probe": lambda: ProbePolicy(ProbeSettings(GROUPS, restart=False)),
    "least in flight": Policy,
    "interleaved": lambda: Interleaved(GROUPS),
}
Change = tuple[float, dict[str, int]]
"""Seconds after the change before, and the sizes that are asked for."""

CHANGES: dict[str, tuple[int, int, list[Change]]] = {
    "heavy to nothing and back": (2, 2, [(0, {"heavy": 0}), (20, {"heavy": 2})]),
    "heavy to nothing and back at once": (2, 2, [(0, {"heavy": 0}), (0.1, {"heavy": 2})]),
    "fast to nothing and back": (2, 2, [(0, {"fast": 0}), (20, {"fast": 2})]),
    "the first heavy engine": (2, 0, [(0, {"heavy": 1}), (60, {"heavy": 0})]),
    "smaller, and smaller while it drains": (4, 1, [(0, {"fast": 2}), (1, {"fast": 1})]),
    "smaller, and larger while it drains": (4, 1, [(0, {"fast": 1}), (1, {"fast": 3}), (20, {"fast": 4})]),
    "one smaller, the other one larger": (3, 1, [(0, {"fast": 1, "heavy": 3})]),
    "both smaller": (3, 3, [(0, {"fast": 1, "heavy": 1})]),
    "all work to the other pool and back": (
        2, 2, [(0, {"fast": 0}), (10, {"fast": 2, "heavy": 0}), (10, {"heavy": 2})],
    ),
}  # fmt: skip
"""Sizes at first, fast and heavy, and what is asked for then."""
IN_FLIGHT: tuple[PauseMode, ...] = ("keep", "abort")
MAIN_CHANGES = (
    "heavy to nothing and back",
    "fast to nothing and back",
    "smaller, and larger while it drains",
)


# The policy decides where requests go on, and not who leaves: the others have the cases that differ most.
COMBINATIONS: list[tuple[str, str, PauseMode]] = [
    *((case, "adaptive", in_flight) for case in CHANGES for in_flight in IN_FLIGHT),
    *((case, policy, "keep") for case in MAIN_CHANGES for policy in POLICIES if policy != "adaptive"),
]


@pytest.mark.parametrize(("case", "policy", "in_flight"), COMBINATIONS)
def test_long_responses_go_on_elsewhere_and_pods_are_free_at_once(
    case: str, policy: str, in_flight: PauseMode
) -> None:
    fast, heavy, changes = CHANGES[case]
    ended = []

    async def script(job: PodsJob) -> None:
        operating = asyncio.create_task(job.operate())
        try:
            while long_ones(job) < 4:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)
            waiting = []
            for seconds, change in changes:
                await asyncio.sleep(seconds)
                waiting.append(asyncio.create_task(job.carry_out(change)))
            await asyncio.gather(*waiting)
            await asyncio.sleep(20)
            for pool in ("fast", "heavy"):
                serving = [pod for pod in job.serving if pod.startswith(pool)]
                assert len(serving) == job.desired.workers(pool)
            ended.append(True)
        finally:
            operating.cancel()

    scenario = Scenario(
        engines=fast, heavy_engines=heavy, steps=STEPS, groups_per_step=GROUPS, samples_per_prompt=SAMPLES,
        max_response_tokens=LONG, max_running=8, length_of=length, policy=POLICIES[policy],
        in_flight=in_flight, timing=FakeTiming(step_seconds=0.01, load_seconds=0.02),
        faults=lambda job: job.shepherd(script(job)),
    )  # fmt: skip
    job = PodsJob(scenario)
    job.abort_seconds = 3.0 if "while it drains" in case else 0.0
    job.run()

    assert ended, "the changes were not over when the job was"
    assert sorted(group.uid for group in job.trained) == list(range(STEPS * GROUPS))
    counts = job.rollouter.counts
    # No engine was lost with what it ran, and nothing began anew.
    assert counts.moved_requests == counts.dropped_tokens == counts.open == 0
    # Short ones may end before a slow engine gives them back.
    assert (counts.continued_requests > 0) >= (job.told_to_leave > 0)
    # The first heavy engine may have got nothing yet.
    assert job.told_to_leave > 0 or case == "the first heavy engine"
    for group in job.trained:
        for index, sample in enumerate(group.samples):
            seed = response_seed(0, group.uid, index)
            assert len(sample.tokens) == length(Request("", sample.tokens, 1, seed))
    job.pool.router.book.check()
