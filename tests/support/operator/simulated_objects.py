"""The objects of one RLJob as an API server keeps them, in memory: the RLJob, its RayClusters, their pods.

Guarantees: a status is written with the resourceVersion that it was made from; who deletes a RayCluster takes
the object at once, while its pods stay until somebody removes them.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from rljob_api.job import Spec
from rljob_api.status import Status, TrainingStatus
from rljob_operator.plan import scaling
from rljob_operator.plan.observed import POOLS, Cluster, Group, Job, Pod, Pool, Record
from rljob_operator.plan.plan import CreateCluster, NoteHead, ScaleGroup
from rljob_operator.plan.pools import wanted
from rljob_operator.plan.times import stamp

TERMINATION_GRACE = 30
"""Seconds; Kubernetes' default."""


class Conflict(Exception):
    """The object has changed since it was read."""


class SimulatedObjects:
    """One namespace with one RLJob."""

    def __init__(self, job: Job, now: datetime) -> None:
        self.now = now
        self.job: Job | None = job
        self.version = 1
        """The RLJob's resourceVersion."""
        self.clusters: dict[str, Cluster] = {}
        self.pods: dict[str, Pod] = {}
        self.serial = 0
        """Number in the UID of the newest object."""
        self.creations: list[tuple[datetime, str]] = []
        """When which RayCluster was made."""

    def write_status(self, status: Status, version: int) -> None:
        """Server-side apply of the operator's part; one that changes nothing makes no new version."""
        if self.job is None or version != self.version:
            raise Conflict
        training = self.job.status.training
        changed = status.model_copy(update={"training": training})
        if changed != self.job.status:
            self.put_job(replace(self.job, status=changed))

    def write_training(self, training: TrainingStatus, version: int) -> None:
        """The runtime's part of the status; nothing is written that says nothing new."""
        if self.job is None or version != self.version:
            raise Conflict
        old = self.job.status.training
        # Without its time: a report that says nothing new is not written.
        word = {"time": old.time, "completed": old.completed} if old is not None else {"time": None}
        if old is None or training.model_copy(update=word) != old:
            training = training.model_copy(update={**word, "time": stamp(self.now)})
            status = self.job.status.model_copy(update={"training": training})
            self.put_job(replace(self.job, status=status))

    def edit(self, spec: Spec) -> None:
        """A user changes the spec."""
        if self.job is not None and spec != self.job.spec:
            self.put_job(replace(self.job, spec=spec, generation=self.job.generation + 1))

    def put_job(self, job: Job) -> None:
        """The RLJob changes."""
        self.job = job
        self.version += 1

    def create_cluster(self, action: CreateCluster, record: Record | None = None) -> None:
        if self.job is None or self.job.spec is None or action.name in self.clusters:
            return
        self.serial += 1
        self.creations.append((self.now, action.name))
        groups = tuple(Group(pool, wanted(self.job.spec, pool)) for pool in POOLS)
        self.clusters[action.name] = Cluster(
            action.name,
            f"cluster-{self.serial}",
            self.job.uid,
            action.attempt,
            self.now,
            False,
            groups,
            False,
            queue=self.job.queue.name if self.job.queue else None,
            suspended=self.job.queue is not None,
            record=record,
        )

    def note_head(self, action: NoteHead) -> None:
        """The operator's annotation; a RayCluster that is another one by now is left alone."""
        cluster = self.clusters.get(action.cluster)
        if cluster is not None and cluster.uid == action.cluster_uid:
            self.clusters[action.cluster] = replace(cluster, head=action.head)

    def delete_cluster(self, name: str, uid: str | None = None) -> None:
        """Background deletion: the object is gone at once, its pods get their deletionTimestamps."""
        cluster = self.clusters.get(name)
        if cluster is None or uid not in (None, cluster.uid):
            return
        del self.clusters[name]
        for pod in list(self.pods.values()):
            if pod.cluster_uid == cluster.uid:
                self.delete_pod(pod.name)

    def delete_pod(self, name: str) -> None:
        pod = self.pods.get(name)
        if pod is not None and pod.deleting is None:
            gone = self.now + timedelta(seconds=TERMINATION_GRACE)
            self.pods[name] = replace(pod, deleting=gone, deletion_grace=TERMINATION_GRACE)

    def patch_group(self, action: ScaleGroup) -> str | None:
        """Check and patch as a plan asks; what failed it, or None."""
        cluster = self.clusters.get(action.cluster)
        if cluster is None or cluster.uid != action.cluster_uid:
            return "the RayCluster is another one"
        group = next(entry for entry in cluster.groups if entry.pool == action.pool)
        if (group.replicas, group.workers_to_delete) != (action.seen_replicas, action.seen_workers_to_delete):
            return "the group has changed"
        if action.checked:
            refused = scaling.refusal(action, self.group_pods(cluster, action.pool))
            if refused is not None:
                return refused
        self.set_group(action.cluster, Group(action.pool, action.replicas, action.workers_to_delete))
        return None

    def suspend_cluster(self, suspended: bool) -> None:
        """Kueue suspends the RayCluster of a job that it queues, or admits it."""
        for name, cluster in self.clusters.items():
            if cluster.queue is not None:
                self.clusters[name] = replace(cluster, suspended=suspended)

    def set_group(self, name: str, group: Group) -> None:
        """Replace one worker group of a RayCluster."""
        cluster = self.clusters[name]
        groups = tuple(group if entry.pool == group.pool else entry for entry in cluster.groups)
        self.clusters[name] = replace(cluster, groups=groups)

    def group_pods(self, cluster: Cluster, pool: Pool) -> list[Pod]:
        """Pods of a group as they are now."""
        return [pod for pod in self.pods.values() if pod.cluster == cluster.name and pod.role == pool]
