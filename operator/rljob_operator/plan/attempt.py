"""The attempt that runs a job, seen as one thing: its RayCluster, its head, its workers.

Guarantees: objects of another RLJob of the same name, of other attempts, of a RayCluster that was made anew,
and pods that only bear an attempt's labels never pass for the attempt's own.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from rljob_api.status import Status
from rljob_operator.plan.observed import POOLS, Cluster, Observed, Pod, Pool
from rljob_operator.plan.times import after, moment, stamp

UNSEEN = timedelta(seconds=60)
"""A head pod that somebody else knew of (`Attempt.head_known_at`) and that the operator has not seen so long
after that is gone: the operator was away while there was one. What the operator sees of pods may lag behind
what it sees of the RLJob and the RayCluster; a driver that goes on reporting runs all the while."""


def dead(pod: Pod) -> bool:
    """Whether the pod's work has ended: no pod here is restarted in place."""
    return pod.phase in ("Failed", "Succeeded") or pod.main is not None


def alive(pod: Pod) -> bool:
    """Whether the pod is there to stay: neither dead nor being deleted."""
    return pod.deleting is None and not dead(pod)


def cluster_name(job: str, attempt: int) -> str:
    """Name of an attempt's RayCluster."""
    return f"{job}-{attempt}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """What exists of the attempt that `status.clusterName` names."""

    number: int
    name: str
    """Name of its RayCluster."""
    cluster: Cluster | None
    """None: it does not exist yet, or not any more."""
    head: Pod | None
    """The attempt's head pod; None while there is none yet, and once it is gone, even where KubeRay has made
    another in its place."""
    head_gone: bool
    """Whether there was a head pod that is gone."""
    last_head: Pod | None
    """The head pod that is gone as it was last seen; None where nothing is known of it."""
    pods: int
    """Pods of the attempt, the head included."""
    workers: dict[Pool, tuple[Pod, ...]]
    """By pool, every pod that exists."""
    taken_trainers: tuple[Pod, ...]
    """Trainer pods that the cluster took, of which some may be gone, and since when no step was trained."""
    reported: datetime | None
    """When the driver of this very RayCluster wrote its newest report, by the clock of its node. None: it has
    written none; then there may not have been a head yet."""
    completed: bool
    """Whether the driver has said that the job is done."""

    def head_known_at(self, now: datetime) -> datetime | None:
        """When somebody else last knew of a head pod: the driver wrote its newest report, or KubeRay said
        that all pods are ready. None: nobody has said so, and the head pod may still be to come."""
        provisioned = None if self.cluster is None else self.cluster.provisioned
        if self.reported is None or provisioned is None:
            return self.reported or provisioned
        # By a clock that is far ahead a head that is gone would be waited for as long.
        return provisioned if self.reported >= now + UNSEEN else max(self.reported, provisioned)

    @property
    def head_runs(self) -> bool:
        """Whether the head pod is seen to run, with a driver that has not ended."""
        return self.head is not None and self.head.phase == "Running" and not head_ended(self.head)

    @property
    def heard_until(self) -> datetime | None:
        """Until when the driver's newest report stands for a head pod that is not seen to run. None: it is
        seen to run or to have ended, or there is no report."""
        ended = self.head_gone if self.head is None else head_ended(self.head)
        if ended or self.head_runs or self.reported is None:
            return None
        return after(stamp(self.reported), UNSEEN.total_seconds())

    def driver_runs(self, now: datetime) -> bool:
        """Whether there is a driver that can answer: its pod is seen to run, or it has reported a moment ago,
        since what is seen of pods may lag behind."""
        until = self.heard_until
        return self.head_runs or (until is not None and now < until < now + 2 * UNSEEN)


def head_ended(head: Pod) -> bool:
    """Whether the head's work is over: its driver or Ray ended."""
    return head.driver is not None or dead(head)


def attempt_of(observed: Observed) -> Attempt | None:
    """The attempt that runs the job; None before the first, between two, and after the last."""
    status = observed.job.status
    name = status.cluster_name
    if name is None:
        return None
    cluster = next((cluster for cluster in own_clusters(observed) if cluster.name == name), None)
    pods = _own(observed.pods, name, status.attempt, cluster)
    recorded = status.head_pod or _first_lost(observed, name, cluster)
    head = _head(pods, recorded, cluster)
    return Attempt(
        number=status.attempt,
        name=name,
        cluster=cluster,
        head=head,
        head_gone=recorded is not None and head is None,
        last_head=next((pod for pod in observed.lost_heads if pod.uid == recorded), None),
        pods=len(pods),
        workers={pool: tuple(pod for pod in pods if pod.role == pool) for pool in POOLS},
        taken_trainers=tuple(_own(observed.taken_trainers, name, status.attempt, cluster)),
        reported=_reported(status, cluster),
        completed=completed(status),
    )


def _own(pods: Iterable[Pod], name: str, attempt: int, cluster: Cluster | None) -> list[Pod]:
    """Those of the attempt whose RayCluster has this name."""
    return [
        pod
        for pod in pods
        if pod.cluster == name
        and pod.attempt == attempt
        and pod.cluster_uid
        # A RayCluster that is deleted and made again keeps its name, but not its UID.
        and (cluster is None or pod.cluster_uid == cluster.uid)
    ]


def completed(status: Status) -> bool:
    """Whether the driver of the newest attempt has said that the job is done.

    `completed` stays in the status when another attempt begins (the job was changed and resumed). It then
    counts only once the new attempt's driver says it, with all steps done.
    """
    training = status.training
    if training is None or training.completed is not True or training.attempt != status.attempt:
        return False
    return training.step >= training.total_steps


def _reported(status: Status, cluster: Cluster | None) -> datetime | None:
    training = status.training
    if cluster is None or training is None or training.time is None or training.attempt != status.attempt:
        return None
    try:
        time = moment(training.time)
    except (ValueError, OverflowError):
        return None  # not the operator's writing
    # A RayCluster that was deleted is made again under its name.
    return time if time >= cluster.created else None


def _first_lost(observed: Observed, name: str, cluster: Cluster | None) -> str | None:
    """UID of the head pod that was lost before the status could name it: the write was refused, or had not
    been made. Without this its successor would pass for the attempt's first, and a failure for nothing."""
    # Without the RayCluster nothing tells whether a pod was its own or somebody else's.
    if cluster is None:
        return None
    found = [pod for pod in observed.lost_heads if pod.cluster_uid == cluster.uid and pod.cluster == name]
    return found[0].uid if found else None


def _head(pods: Iterable[Pod], recorded: str | None, cluster: Cluster | None) -> Pod | None:
    heads = [pod for pod in pods if pod.role == "head"]
    if recorded is not None:
        return next((pod for pod in heads if pod.uid == recorded), None)
    if cluster is None:
        return None
    # KubeRay may have replaced the head already: the attempt began with the oldest.
    return min(heads, key=lambda pod: (pod.created, pod.name), default=None)


def own_clusters(observed: Observed) -> tuple[Cluster, ...]:
    """RayClusters that this very RLJob owns."""
    return tuple(cluster for cluster in observed.clusters if cluster.owner == observed.job.uid)


def own_pods(observed: Observed) -> tuple[Pod, ...]:
    """Pods of the job, of whatever attempt; those of another owner's RayCluster, or of none, are left out."""
    foreign = {"", *(cluster.uid for cluster in observed.clusters if cluster.owner != observed.job.uid)}
    return tuple(pod for pod in observed.pods if pod.cluster_uid not in foreign)
