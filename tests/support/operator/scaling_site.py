"""Jobs whose rollout pools grow and shrink at random, with a runtime that knows which pods hold work.

The runtime is as strict as the real one: it uses every rollout pod that has started, releases as many as the
spec asks for, and takes one back only by a write that the API server refuses if the operator listed the pod
meanwhile. What it sees of each pod that goes is kept, to be judged in the end.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from rljob_client.credentials import find_credentials
from rljob_client.errors import Conflict
from rljob_client.objects import Item
from rljob_client.resources import PODS, RAY_CLUSTERS, RLJOBS, Resource
from rljob_operator.controller.items import PodItem, RayClusterItem
from rljob_operator.controller.project import JobRef, cluster, cluster_job, pod, pod_job
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.informer import Informer, Selection
from rljob_operator.plan.attempt import dead
from rljob_operator.plan.observed import Pod, Pool
from tests.support.jobs import job
from tests.support.operator.kube_site import Site, site
from tests.support.operator.operator_site import SMALL
from tools.cluster import Cluster as Kubernetes

ROLLOUTS: tuple[Pool, ...] = ("fastRollout", "heavyRollout")
MOST = {"fastRollout": 6, "heavyRollout": 3}
"""Workers of each pool at most."""
SECONDS = 240.0
"""Until one job has settled, at most: all jobs share the machine."""


class JobItem(Item, gc=False):
    """An RLJob."""

    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


@dataclass(frozen=True)
class Gone:
    """A worker that was deleted after it had started."""

    pod: str
    busy: bool


@dataclass
class Record:
    """What happened in all jobs."""

    gone: list[Gone] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    """Pods that a RayCluster's workersToDelete ever named."""
    scale_downs: int = 0
    scale_ups: int = 0

    @property
    def busy(self) -> list[str]:
        """Workers that were deleted although they held work."""
        return [each.pod for each in self.gone if each.busy]

    @property
    def unnamed(self) -> list[str]:
        """Workers that KubeRay chose."""
        return [each.pod for each in self.gone if each.pod not in self.named]


class SimulatedRuntime:
    """The driver of one job, as far as its rollout pools go."""

    def __init__(
        self, ref: JobRef, client: ApiClient, record: Record, told: Callable[[], None], deaf: bool
    ) -> None:
        """`told` is called after each answer. `deaf`: it never releases a pod, whatever is asked for."""
        self._ref = ref
        self._deaf = deaf
        self._told = told
        self._client = client
        self._record = record
        self.pods: dict[str, Pod] = {}
        self.in_use: set[str] = set()
        self.released: list[str] = []
        self.changed = asyncio.Event()

    def see(self, pods: dict[str, Pod]) -> None:
        """The pods are these now."""
        for name, before in self.pods.items():
            if before.role not in ROLLOUTS or before.deleting is not None:
                continue
            now = pods.get(name)
            if now is None or now.deleting is not None:
                self._goes(before)
        self.pods = pods
        self.changed.set()

    def _goes(self, pod: Pod) -> None:
        if pod.phase == "Running":
            # Judged before it is forgotten: a pod in use has work that is lost with it.
            self._record.gone.append(Gone(pod.name, pod.name in self.in_use))
        self.in_use.discard(pod.name)
        if pod.name in self.released:
            self.released.remove(pod.name)

    async def run(self) -> None:
        """Answer whatever changes, until cancelled."""
        while True:
            await self.changed.wait()
            self.changed.clear()
            try:
                await self._step()
            except Conflict:
                self.changed.set()

    async def _step(self) -> None:
        found = await self._client.get(RLJOBS, *self._ref, JobItem)
        if not found.status.get("clusterName"):
            return
        # Pods that the operator is about to remove: they are never used again.
        listed = {name for entry in found.status.get("scaleDowns", ()) for name in entry.get("victims", ())}
        released, joining = list(self.released), set(self.in_use)
        for pool in ROLLOUTS:
            self._choose(found.spec["pools"][pool]["replicas"], self._nodes(pool), listed, released, joining)
        if self._deaf:
            released, joining = [], joining | self.in_use
        said = found.status.get("training", {})
        generation = found.metadata.generation
        if said.get("released", []) != released or said.get("observedGeneration") != generation:
            # A pod that is to be used again is used only once this is written; one that is released, not
            # from now on.
            self.in_use &= joining
            await self._write(found, released)
        self.released = [name for name in released if name in self.pods]
        self.in_use = {name for name in joining if self._usable(name)}
        self._told()

    def _choose(
        self, want: int, nodes: list[str], listed: set[str], released: list[str], joining: set[str]
    ) -> None:
        # First what serves, then pods that are new: used up to the wish, released beyond it.
        serving = [name for name in nodes if name in joining]
        for name in nodes:
            if name in joining or name in released:
                continue
            if len(serving) < want and name not in listed:
                serving.append(name)
                joining.add(name)
            else:
                released.append(name)
        # Too many serve: the last are released.
        for name in serving[want:]:
            joining.discard(name)
            released.append(name)
        # Too few: released pods that nobody is removing yet are taken back.
        back = [name for name in released if name in nodes and name not in listed]
        for name in back[: max(want - len(serving), 0)]:
            released.remove(name)
            joining.add(name)

    def _nodes(self, pool: Pool) -> list[str]:
        return sorted(name for name, each in self.pods.items() if each.role == pool and self._usable(name))

    def _usable(self, name: str) -> bool:
        each = self.pods.get(name)
        return each is not None and each.phase == "Running" and each.deleting is None and not dead(each)

    async def _write(self, found: JobItem, released: list[str]) -> None:
        metadata = found.metadata
        training = {
            "attempt": found.status["attempt"],
            "observedGeneration": metadata.generation,
            "step": 1,
            "totalSteps": 4,
            "weightVersion": 1,
            "released": released,
        }
        await self._client.apply_status(
            {
                "apiVersion": "rljob.dev/v1alpha1",
                "kind": "RLJob",
                "metadata": {
                    "namespace": metadata.namespace,
                    "name": metadata.name,
                    # Refused if the operator has listed a pod since this was read.
                    "resourceVersion": metadata.resource_version,
                },
                "status": {"training": training},
            }
        )


class Pools:
    """Jobs of one namespace, their runtimes, and what happens to them."""

    def __init__(self, made: Site, namespace: str, jobs: int, changes: Mapping[str, Any], deaf: bool) -> None:
        """`changes`: what the jobs have besides. `deaf`: see `SimulatedRuntime`."""
        self.record = Record()
        self._changes = changes
        self._namespace = namespace
        self._told = asyncio.Event()
        self._client = made.client
        runtime = made.other("rljob-runtime")
        self.runtimes = {
            ref: SimulatedRuntime(ref, runtime, self.record, self._told.set, deaf)
            for ref in ((namespace, f"scaled-{number}") for number in range(jobs))
        }
        self._jobs = self._informer(made, RLJOBS, JobItem, _ref, lambda item: item, self._job_changed)
        self._pods = self._informer(made, PODS, PodItem, pod_job, pod, self._pods_changed)
        self._clusters = self._informer(
            made, RAY_CLUSTERS, RayClusterItem, cluster_job, cluster, self._cluster_changed
        )

    def _informer(
        self,
        made: Site,
        resource: Resource,
        item: type[Any],
        owner: Callable[[Any], JobRef | None],
        project: Callable[[Any], Any],
        changed: Callable[[JobRef], None],
    ) -> Informer[Any, JobRef, Any]:
        selection = Selection(resource, item, owner, project, self._namespace)
        return Informer(made.client, selection, changed, made.metrics, Random(0))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runtimes answer while this lasts. Raises what a runtime raised."""
        async with asyncio.TaskGroup() as group:
            parts = (self._jobs.run(), self._pods.run(), self._clusters.run())
            tasks = [group.create_task(part) for part in parts]
            tasks += [group.create_task(runtime.run()) for runtime in self.runtimes.values()]
            yield
            for task in tasks:
                task.cancel()

    def _job_changed(self, ref: JobRef) -> None:
        if ref in self.runtimes:
            self.runtimes[ref].changed.set()
        self._told.set()

    def _pods_changed(self, ref: JobRef) -> None:
        if ref in self.runtimes:
            self.runtimes[ref].see({each.name: each for each in self._pods.of(ref).values()})
        self._told.set()

    def _cluster_changed(self, ref: JobRef) -> None:
        for each in self._clusters.of(ref).values():
            self.record.named.update(name for group in each.groups for name in group.workers_to_delete)
        self._told.set()

    async def play(self, ref: JobRef, scale_downs: int, random: Random) -> None:
        """Make the job; change its rollout pools at random until they were made smaller so often; wait until
        all is as it was last asked for."""
        small = {f"pools.{pool}.resources": SMALL for pool in ("head", "trainer", *ROLLOUTS)}
        names = {"/metadata.name": ref[1], "/metadata.namespace": ref[0], "image": "rljob/runtime:1"}
        sizes = {"fastRollout": 4, "heavyRollout": 2}
        wishes = {f"pools.{pool}.replicas": size for pool, size in sizes.items()}
        await self._client.create(job({**small, **names, **wishes, **self._changes}))
        await self._settled(ref, sizes)
        done = 0
        while done < scale_downs:
            before = dict(sizes)
            sizes = {
                "fastRollout": random.randint(1, MOST["fastRollout"]),
                "heavyRollout": random.randint(0, MOST["heavyRollout"]),
            }
            wish = {pool: {"replicas": size} for pool, size in sizes.items()}
            await self._client.patch(RLJOBS, *ref, {"spec": {"pools": wish}})
            smaller = sum(sizes[pool] < before[pool] for pool in ROLLOUTS)
            done += smaller
            self.record.scale_downs += smaller
            self.record.scale_ups += sum(sizes[pool] > before[pool] for pool in ROLLOUTS)
            await self._wait_a_little(ref, sizes, random)
        await self._settled(ref, sizes)

    async def _wait_a_little(self, ref: JobRef, sizes: dict[str, int], random: Random) -> None:
        """Often until it is done; else until something happens, or not at all."""
        chance = random.random()
        if chance < 0.6:
            await self._settled(ref, sizes)
        elif chance < 0.9:
            await self._settled(ref, sizes, random.randint(1, 20))

    async def _something(self) -> None:
        """Wait until something has changed."""
        self._told.clear()  # who was woken already is not held up by that
        await self._told.wait()

    async def _settled(self, ref: JobRef, sizes: dict[str, int], changes: int = 2**31) -> None:
        """Until the job has these sizes, or something has changed so often."""
        try:
            async with asyncio.timeout(SECONDS):
                while changes > 0 and not self._is(ref, sizes):
                    changes -= 1
                    await self._something()
        except TimeoutError:
            raise TimeoutError(f"{ref[1]} is not {sizes} after {SECONDS:g} s: {self._shown(ref)}") from None

    def _is(self, ref: JobRef, sizes: dict[str, int]) -> bool:
        """Whether the job has these sizes, and nothing is under way."""
        [found] = self._jobs.of(ref).values() or [None]
        clusters = list(self._clusters.of(ref).values())
        if found is None or len(clusters) != 1:
            return False
        [made] = clusters
        groups = {group.pool: group for group in made.groups}
        pools = {entry["name"]: entry for entry in found.status.get("pools", ())}
        pods = [each for each in self._pods.of(ref).values() if each.role in ROLLOUTS]
        return (
            all(
                groups[pool].replicas == pools[pool]["ready"] == sizes[pool]
                and not groups[pool].workers_to_delete
                for pool in ROLLOUTS
                if pool in pools
            )
            and len(pools) == 3
            and len(pods) == sum(sizes.values())
            and not found.status.get("scaleDowns")
            and len(self.runtimes[ref].in_use) == sum(sizes.values())
        )

    def _shown(self, ref: JobRef) -> str:
        status = [msgspec.to_builtins(each.status) for each in self._jobs.of(ref).values()]
        groups = [each.groups for each in self._clusters.of(ref).values()]
        return f"{status}, {groups}, {sorted(self.runtimes[ref].pods)}, {self.runtimes[ref].in_use}"


def _ref(item: JobItem) -> JobRef:
    return item.metadata.namespace, item.metadata.name


async def scale_at_random(
    kubernetes: Kubernetes,
    namespace: str,
    jobs: int,
    scale_downs: int,
    seed: int,
    changes: Mapping[str, Any] | None = None,
    deaf: bool = False,
) -> Record:
    """Play `jobs` jobs side by side, `scale_downs` in each; an operator must run. What happened.

    `changes`: what the jobs have besides. `deaf`: their runtimes release nothing."""
    async with site(find_credentials(kubernetes.kubeconfig)) as made:
        pools = Pools(made, namespace, jobs, changes or {}, deaf)
        async with pools.running(), asyncio.TaskGroup() as group:
            for number, ref in enumerate(pools.runtimes):
                group.create_task(pools.play(ref, scale_downs, Random(seed * 1000 + number)))
        return pools.record
