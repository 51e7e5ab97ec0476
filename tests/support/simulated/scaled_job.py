"""A whole job in virtual time whose rollout workers come and go: the real fleet on a made-up Ray cluster."""

import asyncio
import itertools
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from rljob_runtime.change_signal import ChangeSignal
from rljob_runtime.driver.activity import JobActivity
from rljob_runtime.driver.stall import Activity
from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.engines.protocol import Engine, EngineDied, Generation, Request, WeightRef
from rljob_runtime.fleet.fleet import Fleet
from rljob_runtime.fleet.member import FleetTimes
from rljob_runtime.fleet.worker_spec import WorkerSpec
from rljob_runtime.net.keys import Keyring
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.site.desired import DesiredState
from rljob_runtime.site.nodes import NodeGone, NodeTable, RayNode
from rljob_runtime.site.site import Site
from rljob_runtime.site.status_draft import StatusDraft
from rljob_runtime.weights.shm import WeightsGone
from tests.support.simulated.simulated_job import Scenario, SimulatedJob

DETECTION_SECONDS = 15.0
"""Until Ray finds a node dead that does not answer."""
KV_TOKENS = 4096
"""What each engine says of its KV cache."""


class PodEngine(FakeEngine):
    """An engine that tells whether it lives."""

    alive = True
    cluster: "MadeUpCluster"

    async def submit(self, request: Request) -> Generation:
        if self.cluster.wrong_at_work is not None:
            self.die(self.cluster.wrong_at_work)
        return await super().submit(request)

    async def load(self, ref: WeightRef) -> None:
        if self.cluster.unreachable:
            self.cluster.unreachable -= 1
            raise WeightsGone("the trainer's pod does not answer")
        await super().load(ref)

    def die(self, reason: str) -> None:
        super().die(reason)
        self.alive = False


class MadeUpCluster:
    """Pods that are Ray nodes, with one place each."""

    def __init__(self) -> None:
        self.nodes: dict[str, RayNode] = {}
        self.engines: dict[str, list[PodEngine]] = {}
        """All that were ever started on a pod."""
        self.unreachable = 0
        """How many loads are to find no weights."""
        self.wrong_at_start: str | None = None
        """What keeps engines from starting."""
        self.wrong_at_work: str | None = None
        """What ends engines at their next request."""
        self.starts = 0
        """How often an engine was to start."""
        self._numbers = itertools.count()

    def add(self, pool: str = "fast") -> str:
        """A new pod; its name, which is its node's id too."""
        name = f"{pool}-pod-{next(self._numbers)}"
        self.nodes[name] = RayNode(name, "127.0.0.1", {f"{pool}_rollout": 1.0})
        self.engines[name] = []
        return name

    def remove(self, pod: str) -> None:
        """End a pod and what is on it; Ray finds out later."""
        for engine in self.engines[pod]:
            engine.die(f"{pod} was removed")
        # Kept without resources: whoever asks about it meanwhile waits for Ray to find out, see `pod_of`.
        self.nodes[pod] = replace(self.nodes[pod], resources={})

    def working(self, pod: str) -> list[PodEngine]:
        """Engines on a pod that live."""
        return [engine for engine in self.engines[pod] if engine.alive]

    async def read(self) -> list[RayNode]:
        return [node for node in self.nodes.values() if node.resources]

    async def pod_of(self, node_id: str) -> str:
        # Ray has not noticed: whoever asks waits until it has.
        if not self.nodes[node_id].resources:
            await asyncio.sleep(DETECTION_SECONDS)
            raise NodeGone(f"{node_id} is gone")
        await asyncio.sleep(0.5)
        return node_id


class ScaledJob(SimulatedJob):
    """Runs a scenario with `scenario.engines` fast workers and `scenario.heavy_engines` heavy ones at first;
    its `faults` change pods and sizes."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.cluster = MadeUpCluster()
        self.changes = ChangeSignal()
        self.draft = StatusDraft(attempt=1)
        self.desired = DesiredState(
            generation=1, trainer=1, fast=scenario.engines, heavy=scenario.heavy_engines
        )
        self.said: list[str] = []
        self.start_seconds = 1.0
        self.times = FleetTimes()
        self.kv_tokens: int | None = None
        """What each engine says of its KV cache, where it is not `KV_TOKENS`."""
        self.fleet: Fleet | None = None

    def ask(self, **changes: object) -> None:
        """Change what the RLJob asks for."""
        self.desired = replace(self.desired, generation=self.desired.generation + 1, **changes)
        self.changes.notify()

    def status_is_written(self) -> None:
        """The status draft is written, and told so, as `cluster.report` does it."""
        seen = self.desired
        released = self.draft.take()["released"]
        self.draft.written(released, seen.doomed)
        self.changes.notify()

    @property
    def released(self) -> list[str]:
        return list(self.draft.training["released"])

    @property
    def serving(self) -> list[str]:
        """Pods whose engines are in the pool, some of them perhaps paused for new weights."""
        return sorted(
            pod
            for pod, engines in self.cluster.engines.items()
            if any(slot.engine in engines and not slot.leaving for slot in self.pool.slots)
        )

    async def add_engine(self, version: int, pool: str = "fast") -> None:
        """At the first call start the fleet; the base class calls this for each engine."""
        if self.fleet is not None:
            return
        for _ in range(self.scenario.engines):
            self.cluster.add()
        for _ in range(self.scenario.heavy_engines):
            self.cluster.add("heavy")
        table = NodeTable(
            self.cluster.read, self.cluster.pod_of, ("fast_rollout", "heavy_rollout"), self.changes
        )
        site = Site(
            False, table, "home", "127.0.0.1", lambda: self.desired, self.draft, self.changes, Keyring()
        )
        may_join = asyncio.Event()
        may_join.set()
        self.fleet = Fleet(
            self, self.pool, self.plan, self._never_collective, may_join, site, self._spawn, self.said.append,
            self.times, asyncio.get_running_loop().time,
        )  # fmt: skip
        self._helpers = [self.tasks.create_task(table.run()), self.tasks.create_task(self._follow())]
        await self.fleet.started(lambda: False)

    def shepherd(self, script: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Runs what happens to the pods, then waits; ends the fleet when it is cancelled, which the base
        class does at the end."""

        async def wait() -> None:
            try:
                await script
                await asyncio.get_running_loop().create_future()
            finally:
                for helper in self._helpers:
                    helper.cancel()
                assert self.fleet is not None
                await self.fleet.close()

        return self.tasks.create_task(wait())

    def spec(self, name: str, pool: str) -> WorkerSpec:
        return WorkerSpec(name, pool, self.scenario.max_running, self.events)

    async def make(self, worker: WorkerSpec, node: RayNode) -> Engine:
        await asyncio.sleep(self.start_seconds)
        scenario = self.scenario
        self.cluster.starts += 1
        if self.cluster.wrong_at_start is not None:
            raise EngineDied(self.cluster.wrong_at_start)
        # The pod went while its worker started.
        if not self.cluster.nodes[node.id].resources:
            raise EngineDied(f"{node.id} takes no actor")
        engine = PodEngine(
            worker.name, scenario.length_of, scenario.max_running, self.timing_of(worker.pool),
            kv_tokens=self.kv_tokens or KV_TOKENS,
        )  # fmt: skip
        engine.cluster = self.cluster
        self.cluster.engines[node.id].append(engine)
        await engine.start(self.controller.bound.version_at(self.first_step))
        return engine

    async def _activity(self) -> Activity:
        assert self.fleet is not None
        scored = sum(self.scored.values())
        return await JobActivity(self.pool, self.fleet, self.rollouter, lambda: scored)()

    async def _follow(self) -> None:
        assert self.fleet is not None
        while True:
            self.fleet.adjust()
            for pod in self.released:
                assert not self.cluster.working(pod), f"{pod} is released with an engine on it"
            await self.changes.wait()

    async def _never_collective(self) -> None:
        raise AssertionError("shm is stored")

    def _spawn(self, work):
        return self.tasks.create_task(work)

    def _engine_lost(self, slot: EngineSlot, why: str) -> None:
        if self.fleet is not None:
            self.fleet.lost(slot, why)
