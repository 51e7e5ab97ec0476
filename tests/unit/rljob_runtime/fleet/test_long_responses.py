"""Pools change their sizes while long responses run: pods are free within moments, and no token is lost."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.engines.protocol import Engine, PauseMode, Request
from rljob_runtime.fleet.worker_spec import WorkerSpec
from rljob_runtime.groups.responses import response_seed
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.fixed import Interleaved
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings
from rljob_runtime.site.nodes import RayNode
from tests.support.simulated.scaled_job import ScaledJob
from tests.support.simulated.simulated_job import Scenario

LONG = 3000
"""Tokens: 30 seconds and more."""
STEPS, GROUPS, SAMPLES = 12, 4, 4
DRAIN_SECONDS = 2.0
"""In which a pod is to be free."""
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


def length(request: Request) -> int:
    return LONG if request.seed % 8 == 0 else 20 + request.seed % 60


def long_ones(job: ScaledJob) -> int:
    """How many long responses run."""
    return sum(
        running.length + running.request.generated == LONG
        for engines in job.cluster.engines.values()
        for engine in engines
        for running in engine._running.values()
    )


class PodsJob(ScaledJob):
    """Plays the operator: takes the pods that are released, and makes those that are missing."""

    abort_seconds = 0.0
    """How long an engine takes to give a request back."""
    told_to_leave = 0
    """Requests on engines that were told to leave."""

    async def make(self, worker: WorkerSpec, node: RayNode) -> Engine:
        engine = await super().make(worker, node)
        abort = engine.abort

        async def late(request_id: str) -> None:
            await asyncio.sleep(self.abort_seconds)
            await abort(request_id)

        engine.abort = late  # type: ignore[method-assign]
        return engine

    async def operate(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.status_is_written()
            pods = [node.id for node in await self.cluster.read()]
            going = []
            for pool in ("fast", "heavy"):
                mine = [pod for pod in pods if pod.startswith(f"{pool}-")]
                more = self.desired.workers(pool) - len(mine)
                going += [pod for pod in mine if pod in self.released][: max(0, -more)]
                for _ in range(more):
                    self.cluster.add(pool)
            # It says which, before it removes them: none of them comes back.
            self.desired = replace(self.desired, doomed=frozenset(going))
            self.changes.notify()
            await asyncio.sleep(0.5)
            for pod in going:
                assert not self.cluster.working(pod)
                self.cluster.remove(pod)

    async def carry_out(self, change: dict[str, int]) -> None:
        before = {slot: slot.running for slot in self.pool.slots if not slot.leaving}
        self.ask(**change)
        await asyncio.sleep(0.05)
        left = [slot for slot in before if slot.leaving or not slot.alive]
        self.told_to_leave += sum(before[slot] for slot in left)
        staying = {pod: self.cluster.working(pod) for pod in self.serving}
        await asyncio.sleep(DRAIN_SECONDS + self.abort_seconds)
        for pool in change:
            serving = [pod for pod in self.serving if pod.startswith(pool)]
            assert len(serving) <= self.desired.workers(pool), "what is too much is drained within moments"
            # Who stays is not disturbed.
            assert all(staying[pod] == self.cluster.working(pod) for pod in serving if pod in staying)


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
