"""Gathers what a decision about one job rests on.

Guarantees: everything comes from memory, with two exceptions. Before an attempt is ended, or another one
begins, the job's RayClusters and pods are listed anew: a watch that has died unnoticed shows pods as absent
or not ready that are there. And the Events of a head pod that was deleted while the operator did not run are
read, once its loss is noticed. KubeRay tells by nothing but an Event that it refuses a RayCluster: its
warnings count for a RayCluster that has no status after a few seconds."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from rljob_api.status import Status
from rljob_client.resources import CORE_EVENTS
from rljob_operator.controller.head_events import head_from_events
from rljob_operator.controller.items import CoreEvent
from rljob_operator.controller.jobs import Entry
from rljob_operator.controller.kuberay_schema import KubeRaySchema
from rljob_operator.controller.listing import list_clusters, list_pods
from rljob_operator.controller.lost_workers import LostWorkers
from rljob_operator.controller.mutation_cache import MutationCache
from rljob_operator.controller.project import ClusterWarning, JobRef
from rljob_operator.controller.watched import Informers
from rljob_operator.kube.client import ApiClient
from rljob_operator.plan.attempt import attempt_of
from rljob_operator.plan.believed import readable
from rljob_operator.plan.observed import Cluster, Observed, Pod

_NOTICE = timedelta(seconds=3)
"""KubeRay writes a RayCluster's first status within this time, unless it refuses it or is not there."""
_HEADS = 4
"""Head pods that are remembered of a job: those of the newest attempts."""


class LastHeads:
    """The jobs' head pods as they were last seen, for when they are gone: how the driver ended may be told by
    nothing else. Of each RayCluster the first counts: with it the attempt ends."""

    def __init__(self) -> None:
        self._heads: dict[JobRef, dict[str, Pod]] = {}

    def see(self, ref: JobRef, pods: Iterable[Pod]) -> None:
        """To be called at each change of a job's pods: KubeRay deletes a pod soon after it has ended."""
        for pod in pods:
            if pod.role == "head" and pod.cluster_uid:
                known = self._heads.setdefault(ref, {})
                known[pod.uid] = pod
                if len(known) > _HEADS:
                    del known[_least_needed(known)]

    def lost(self, ref: JobRef, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        """Those that are not among `pods`, in the order in which they were seen first."""
        there = {pod.uid for pod in pods}
        return tuple(pod for uid, pod in self._heads.get(ref, {}).items() if uid not in there)

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        self._heads.pop(ref, None)


def _least_needed(heads: Mapping[str, Pod]) -> str:
    """UID of the newest successor of another head in its RayCluster or, where there is none, of the oldest
    head."""
    # The first head of a RayCluster tells how its attempt ended; a successor tells nothing that counts.
    firsts: dict[str, str] = {}
    later = [uid for uid, pod in heads.items() if firsts.setdefault(pod.cluster_uid, uid) != uid]
    return later[-1] if later else next(iter(heads))


class Observer:
    """Makes observations."""

    def __init__(
        self,
        informers: Informers,
        kuberay: KubeRaySchema,
        client: ApiClient,
        mutations: MutationCache,
        heads: LastHeads,
        workers: LostWorkers,
        clock: Callable[[], float],
    ) -> None:
        """`clock` in seconds; it only moves forward."""
        self._informers = informers
        self._kuberay = kuberay
        self._client = client
        self._mutations = mutations
        self._clock = clock
        self._heads = heads
        self._workers = workers

    async def observe(self, ref: JobRef, entry: Entry, now: datetime, anew: bool = False) -> Observed:
        """The job with all that belongs to it. `anew`: RayClusters and pods as the API server has them now.
        Raises `ApiError`."""
        listed = await self._list(ref) if anew else None
        kuberay, detail = await self._kuberay.state(self._informers.clusters.served)
        warnings = self._informers.warnings.of(ref).values()
        clusters = tuple(
            replace(cluster, refusal=_newest(warnings, cluster.uid)) if _silent(cluster, now) else cluster
            for cluster in self._mutations.newest(
                ref, self._informers.clusters.of(ref).values(), self._clock()
            )
        )
        pods = tuple(self._informers.pods.of(ref).values())
        if listed is not None:
            there, pods = listed
            # As they are known, and those of which no watch has told.
            by_uid = {cluster.uid: cluster for cluster in clusters}
            clusters = tuple(by_uid.get(cluster.uid, cluster) for cluster in there)
        heads, workers = self._heads.lost(ref, pods), self._workers.of(ref)
        taken = self._workers.taken(ref, entry.job.status.attempt, _step(entry.job.status))
        observed = Observed(entry.job, clusters, pods, heads, workers, taken, kuberay, detail)
        # The UID of a head becomes part of a request.
        known = replace(observed, job=replace(entry.job, status=readable(observed, now)))
        trace = await self._trace(ref, known)
        return observed if trace is None else replace(observed, lost_heads=(*heads, trace))

    async def _list(self, ref: JobRef) -> tuple[list[Cluster], tuple[Pod, ...]]:
        """The job's RayClusters, which are remembered until a watch has told as much, and its pods."""
        clusters = await list_clusters(self._client, ref, self._informers.clusters.of(ref))
        # Later: a pod that is there has a RayCluster that was.
        pods = tuple(await list_pods(self._client, ref, self._informers.pods.of(ref)))
        for each in clusters:
            self._mutations.changed(ref, each)
        self._heads.see(ref, pods)
        return [each.cluster for each in clusters], pods

    async def _trace(self, ref: JobRef, observed: Observed) -> Pod | None:
        """The head pod on record, where it is gone and was not seen last."""
        attempt, uid = attempt_of(observed), observed.job.status.head_pod
        # Only for a head that this process did not see end: Events cost a request each time.
        if attempt is None or uid is None or not attempt.head_gone or attempt.last_head is not None:
            return None
        cluster = attempt.cluster
        if cluster is None:
            return None
        about_cluster, about_pod = [
            await self._client.list(CORE_EVENTS, CoreEvent, ref[0], field_selector=selector)
            for selector in (
                f"involvedObject.uid={cluster.uid},reason=DeletedHeadPod",
                f"involvedObject.uid={uid}",
            )
        ]
        return head_from_events(attempt, cluster, uid, about_cluster, about_pod)

    def told(self, ref: JobRef, observed: Observed) -> None:
        """The status and the events of the plan from this observation are written: its lost workers need not
        be told again."""
        self._workers.told(ref, observed.lost_workers)

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        self._heads.forget(ref)
        self.leave(ref)

    def leave(self, ref: JobRef) -> None:
        """The job is another operator's: what this one did to its objects is of the past."""
        self._workers.forget(ref)
        self._mutations.forget(ref)


def _step(status: Status) -> int:
    """The last that the driver of the newest attempt has told of; 0: of none."""
    training = status.training
    return training.step if training is not None and training.attempt == status.attempt else 0


def _newest(warnings: Iterable[ClusterWarning], uid: str) -> str | None:
    """Message of the newest warning about a RayCluster."""
    about = [warning for warning in warnings if warning.cluster_uid == uid]
    newest = max(about, key=lambda warning: warning.time, default=None)
    return newest.message if newest is not None else None


def _silent(cluster: Cluster, now: datetime) -> bool:
    return not cluster.status_seen and not cluster.deleting and now - cluster.created > _NOTICE


def recheck(observed: Observed, now: datetime) -> float | None:
    """Seconds after which to look again at what nothing tells of: that KubeRay has had its time to take
    notice of a RayCluster, and whether KubeRay is there by now. None: never."""
    waits = [
        (cluster.created + _NOTICE - now).total_seconds()
        for cluster in observed.clusters
        if not cluster.status_seen and not cluster.deleting
    ]
    waits = [wait for wait in waits if wait >= 0]
    if observed.kuberay != "ready":
        waits.append(_NOTICE.total_seconds())
    return min(waits) + 1.0 if waits else None
