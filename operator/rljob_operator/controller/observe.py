"""Gathers what a decision about one job rests on.

Guarantees: from memory alone, but for one thing: KubeRay says in an Event only that it refuses a RayCluster,
so the Events of a RayCluster that has no status after a few seconds are read.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rljob_operator.controller.items import CoreEvent, PodItem, RayClusterItem
from rljob_operator.controller.jobs import Entry
from rljob_operator.controller.kuberay_schema import KubeRaySchema
from rljob_operator.controller.project import JobRef
from rljob_operator.controller.written import SeenCluster, WrittenClusters
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.informer import Informer
from rljob_operator.kube.resources import CORE_EVENTS
from rljob_operator.plan.observed import Cluster, Observed, Pod

_NOTICE = timedelta(seconds=3)
"""KubeRay writes a RayCluster's first status within this time, unless it refuses it or is not there."""
_HEADS = 4
"""Head pods that are remembered of a job: that of the attempt, and those that came after it."""


@dataclass(frozen=True)
class Informers:
    """What is kept in memory of the jobs' objects."""

    clusters: Informer[RayClusterItem, JobRef, SeenCluster]
    pods: Informer[PodItem, JobRef, Pod]


class LastHeads:
    """The jobs' head pods as they were last seen, for when they are gone: how the driver ended may be told by
    nothing else."""

    def __init__(self) -> None:
        self._heads: dict[JobRef, dict[str, Pod]] = {}

    def see(self, ref: JobRef, pods: Iterable[Pod]) -> None:
        """To be called at each change of a job's pods: KubeRay deletes a pod soon after it has ended."""
        for pod in pods:
            if pod.role == "head":
                known = self._heads.setdefault(ref, {})
                known[pod.uid] = pod
                if len(known) > _HEADS:
                    del known[next(iter(known))]

    def lost(self, ref: JobRef, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        """Those that are not among `pods`."""
        there = {pod.uid for pod in pods}
        return tuple(pod for uid, pod in self._heads.get(ref, {}).items() if uid not in there)

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        self._heads.pop(ref, None)


class Observer:
    """Makes observations."""

    def __init__(
        self,
        informers: Informers,
        kuberay: KubeRaySchema,
        client: ApiClient,
        written: WrittenClusters,
        heads: LastHeads,
        clock: Callable[[], float],
    ) -> None:
        """`clock` in seconds; it only moves forward."""
        self._informers = informers
        self._kuberay = kuberay
        self._client = client
        self._written = written
        self._clock = clock
        self._heads = heads

    async def observe(self, ref: JobRef, entry: Entry, now: datetime) -> Observed:
        """The job with all that belongs to it. Raises `ApiError`."""
        kuberay, detail = await self._kuberay.state(self._informers.clusters.served)
        silent = [cluster for cluster in self._clusters(ref) if _silent(cluster, now)]
        refusals = {cluster.name: await self._refusal(ref, cluster) for cluster in silent}
        # Read anew: time has passed.
        clusters = tuple(
            replace(cluster, refusal=refusals.get(cluster.name) or cluster.refusal)
            for cluster in self._clusters(ref)
        )
        pods = tuple(self._informers.pods.of(ref).values())
        return Observed(entry.job, clusters, pods, self._heads.lost(ref, pods), kuberay, detail)

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        self._heads.forget(ref)
        self._written.forget(ref)

    def _clusters(self, ref: JobRef) -> tuple[Cluster, ...]:
        return self._written.newest(ref, self._informers.clusters.of(ref).values(), self._clock())

    async def _refusal(self, ref: JobRef, cluster: Cluster) -> str | None:
        """Message of the newest warning about the RayCluster."""
        events = await self._client.list(
            CORE_EVENTS, CoreEvent, ref[0], field_selector=f"involvedObject.uid={cluster.uid},type=Warning"
        )
        newest = max(events, key=lambda event: event.last_timestamp or event.event_time or "", default=None)
        return newest.message if newest is not None else None


def _silent(cluster: Cluster, now: datetime) -> bool:
    return not cluster.status_seen and not cluster.deleting and now - cluster.created > _NOTICE


def recheck(observed: Observed) -> float | None:
    """Seconds after which to look again at what nothing tells of: Events about a RayCluster that KubeRay is
    silent on, and whether KubeRay is there by now. None: never."""
    silent = any(not cluster.status_seen and not cluster.deleting for cluster in observed.clusters)
    waits = silent or observed.kuberay != "ready"
    return _NOTICE.total_seconds() + 1.0 if waits else None
