"""A whole job in virtual time whose pods come and go as its RLJob asks, with a few responses that are much
longer than the others."""

import asyncio
from dataclasses import replace

from rljob_runtime.engines.protocol import Engine, Request
from rljob_runtime.fleet.worker_spec import WorkerSpec
from rljob_runtime.site.nodes import RayNode
from tests.support.simulated.scaled_job import ScaledJob

LONG = 3000
"""Tokens: 30 seconds and more."""
DRAIN_SECONDS = 2.0
"""In which a pod is to be free."""


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
