"""What the operator sees of one RLJob: the only input of its decisions, besides the time.

Guarantees: values only, small enough for 10,000 pods; nothing here reads a cluster.

What whoever fills it in promises:
- the job (spec and status from one read) is not older than the last status that was written for it, and the
  RayClusters are not older than the last change that the operator made to them;
- pods may be stale, and all may be stale against each other, but nothing goes back in time, and a new leader
  reads everything anew before it decides: what an earlier decision rested on has been seen by the next one;
- all times are aware datetimes in UTC.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from rljob_api.job import Spec
from rljob_api.kubernetes import ManagedBy
from rljob_api.status import Status

Pool = Literal["trainer", "fastRollout", "heavyRollout"]
"""A pool of workers, by its name in the RLJob."""
Role = Literal["head", "trainer", "fastRollout", "heavyRollout"]
"""Value of the label `rljob.dev/pool` of a pod."""
EVICTED = "Evicted"
"""Of a pod that the kubelet evicted since it used more disk than its own limits allow."""
POOLS: tuple[Pool, ...] = ("trainer", "fastRollout", "heavyRollout")
"""In the order of the RayCluster's worker groups."""
GROUPS: dict[Pool, str] = {
    "trainer": "trainer",
    "fastRollout": "fast-rollout",
    "heavyRollout": "heavy-rollout",
}
"""Name of each pool's worker group in the RayCluster; people read it too."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Where Kueue queues the job."""

    name: str
    """Name of the LocalQueue, in the job's namespace: label `kueue.x-k8s.io/queue-name`."""
    priority_class: str | None = None
    """Of Kueue's WorkloadPriorityClass: label `kueue.x-k8s.io/priority-class`. None: none is named."""


@dataclass(frozen=True, slots=True)
class Job:
    """The RLJob."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: datetime
    deleting: bool
    """Whether it has a deletionTimestamp."""
    managed_by: ManagedBy
    """`spec.managedBy`, readable even where the spec is not."""
    spec: Spec | None
    """What is asked for, as it was written: an image that is not named is None; None where it cannot be
    parsed."""
    invalid: str | None
    """Why nothing can be made of the spec, for people: it cannot be parsed, or not rendered. None: it can."""
    status: Status
    """As last written, with the runtime's `training`; the empty Status before the first write."""
    queue: Queue | None = None
    """The RayCluster of the next attempt is created suspended, for Kueue to admit. None: no queue."""
    left_out: tuple[str, ...] = ()
    """Fields of a newer release that are not in `spec`, as dotted YAML paths."""


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """How a container ended (`state.terminated`)."""

    exit_code: int
    reason: str
    """Kubernetes' word for it, such as Completed, Error or OOMKilled."""
    message: str
    """The termination message: what the container wrote, or its last lines of log."""
    finished: datetime
    """When the container ended."""


@dataclass(frozen=True, slots=True)
class Helper:
    """A container beside Ray's and the driver's that has ended: the pod is not ready from then on."""

    name: str
    end: ContainerEnd


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that carries the label `rljob.dev/job` of this job."""

    name: str
    uid: str
    role: Role
    attempt: int
    """Label `rljob.dev/attempt`."""
    cluster: str
    """Name of its RayCluster (label `ray.io/cluster`)."""
    cluster_uid: str
    """UID of its RayCluster: the controlling owner reference, which KubeRay sets. Empty: none of that name
    owns it, and it only bears the labels. Then it is none of the job's, though KubeRay takes it for one."""
    created: datetime
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    ready: bool
    """Condition Ready."""
    deleting: datetime | None = None
    """metadata.deletionTimestamp: by when the pod is to be gone. None: it is not being deleted."""
    deletion_grace: int = 0
    """metadata.deletionGracePeriodSeconds: `deleting` is that many seconds after the deletion was asked
    for."""
    node: str | None = None
    """Name of the node that it is bound to; None before it is scheduled."""
    unschedulable: str | None = None
    """Message of the scheduler, while there is no room for the pod."""
    waiting: str | None = None
    """Why a container does not start: its reason and message, such as `ImagePullBackOff: ...`. None for the
    ordinary PodInitializing and ContainerCreating."""
    disrupted: str | None = None
    """Why its node or the cluster, not a container, ends it: reason of the condition DisruptionTarget,
    NodeLost, Preempting, Shutdown, OutOfcpu, or `EVICTED`. None: nothing of the kind."""
    eviction: str = ""
    """What the kubelet said when it evicted the pod, or did not let it begin; empty for all others."""
    driver: ContainerEnd | None = None
    """How the container `driver` of the head ended; None while it has not."""
    main: ContainerEnd | None = None
    """How Ray's container ended; None while it has not."""
    helper: Helper | None = None
    """The first of the other containers that ended; None while none has."""


@dataclass(frozen=True, slots=True)
class Group:
    """A worker group of a RayCluster, as its spec has it."""

    pool: Pool
    replicas: int
    workers_to_delete: tuple[str, ...] = ()
    """`scaleStrategy.workersToDelete`."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the operator noted on a RayCluster when it made it: the job's own token cannot write there."""

    failures: int
    """`status.failures` when the attempt began."""
    restarts: int
    """`status.restarts` when the attempt began."""
    start_time: str | None
    """`status.startTime` when the attempt began, RFC 3339; None for one that had yet to be admitted."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A RayCluster that carries the label `rljob.dev/job` of this job."""

    name: str
    uid: str
    owner: str | None
    """UID of its controlling owner: another one than the job's belongs to a job of the same name that is
    gone. None: it has no controlling owner."""
    attempt: int
    created: datetime
    deleting: bool
    groups: tuple[Group, ...]
    status_seen: bool
    """Whether KubeRay has written its status: it has taken notice of the RayCluster."""
    refusal: str | None = None
    """Message of KubeRay's newest warning Event that the spec is invalid; it gives no other sign of that."""
    queue: str | None = None
    """Name of the queue that it was created for. None: none; then the operator creates it unsuspended."""
    suspended: bool = False
    """`spec.suspend`: KubeRay makes no pods, and deletes those that there are."""
    provisioned: datetime | None = None
    """Since when KubeRay says that all pods have been ready once (condition RayClusterProvisioned); None: it
    has not said so. It makes no new head pod from then on."""
    record: Record | None = None
    """None: an operator that notes nothing has made it."""
    head: str | None = None
    """UID of the attempt's head pod, which the operator noted as soon as there was one: the job's own token
    cannot write there. None: there was none yet, or an operator that notes nothing has seen it."""


@dataclass(frozen=True, slots=True)
class CreationFailure:
    """Why a RayCluster, or something that its pods need, could not be made or changed when that was tried
    last."""

    cluster: str
    """Name of the RayCluster."""
    reason: Literal["NameTaken", "RayClusterRefused"]
    message: str
    """What could not be made and why, for people: one sentence."""
    again: datetime
    """When it is to be tried again: nothing tells that it would succeed."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a decision about one job rests on."""

    job: Job
    clusters: tuple[Cluster, ...]
    pods: tuple[Pod, ...]
    lost_heads: tuple[Pod, ...] = ()
    """Head pods that are gone, as they were last seen: tells why. In the order in which they were seen first;
    of each RayCluster at least the first that is remembered. What a restart of the operator made it forget is
    missing."""
    lost_workers: tuple[Pod, ...] = ()
    """Workers that ran and have ended or gone since the last plan was carried out, as they were last seen:
    KubeRay may have replaced them already. Empty after a restart of the operator."""
    taken_trainers: tuple[Pod, ...] = ()
    """Trainer pods that the cluster took, as they were last seen, and since when the driver has told of no
    step: told already or not. Empty after a restart of the operator."""
    kuberay: Literal["ready", "missing", "unsupported"] = "ready"
    """Whether the cluster serves RayClusters: missing, it has no such kind; unsupported, not with the fields
    that are needed."""
    kuberay_detail: str = ""
    """What is unsupported, for people."""
    creation_failure: CreationFailure | None = None
    """None: what was tried last could be made. One of an earlier generation of the job does not count."""
    access_failure: CreationFailure | None = None
    """Why an access object that was deleted while the job ran could not be made again; None as for
    `creation_failure`."""
    access_due: bool = False
    """Whether it is time to look whether the job's Role and its like are there: nothing tells of their
    deletion."""
