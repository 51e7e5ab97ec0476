"""From the API server's objects to the values that decisions rest on. Pure.

Guarantees: an object that lacks the project's labels, or has values there that the operator never writes,
belongs to no job: None.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import get_args

from rljob_client.objects import Item
from rljob_operator.controller.items import (
    ContainerStatus,
    ContainerTerminated,
    CoreEvent,
    PodItem,
    RayClusterItem,
)
from rljob_operator.kube.owners import controller_uid, ray_cluster_uid
from rljob_operator.plan.conditions import clip
from rljob_operator.plan.observed import EVICTED, GROUPS, Cluster, ContainerEnd, Group, Helper, Pod, Role
from rljob_operator.plan.times import moment
from rljob_operator.render.labels import ATTEMPT, HEAD, JOB, POOL, QUEUE, record_of
from rljob_operator.render.names import DRIVER_CONTAINER, HEAD_CONTAINER, WORKER_CONTAINER

JobRef = tuple[str, str]
"""Namespace and name of an RLJob."""

_POOL_OF = {group: pool for pool, group in GROUPS.items()}
_ROLES: tuple[Role, ...] = get_args(Role)
_PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
_STARTING = ("PodInitializing", "ContainerCreating", "")
"""Why a container waits that only takes its time: nothing that a person could do anything about."""
_MAIN = (HEAD_CONTAINER, WORKER_CONTAINER)
_DISRUPTIONS = (EVICTED, "NodeLost", "Preempting", "Shutdown", "NodeShutdown", "Terminated")
"""`status.reason` of a pod that its node or the cluster ended, not its own containers."""
_REJECTIONS = ("NodeAffinity", "TopologyAffinityError", "UnexpectedAdmissionError")
_NO_ROOM = "OutOf"
"""`status.reason` of a pod that the kubelet does not let begin, after the scheduler has bound it: one of
these, or this before the name of what the node has too little of."""
_NO_TIME = datetime.fromtimestamp(0, UTC)


def job_of(item: Item) -> JobRef | None:
    """The RLJob that an object was made for."""
    name = item.metadata.labels.get(JOB)
    return (item.metadata.namespace, name) if name else None


def cluster_job(item: RayClusterItem) -> JobRef | None:
    """The RLJob of a RayCluster whose labels and groups are the operator's."""
    readable = item.metadata.labels.get(ATTEMPT, "").isdecimal()
    return job_of(item) if readable else None


def pod_job(item: PodItem) -> JobRef | None:
    """The RLJob of a pod whose labels are the operator's."""
    labels = item.metadata.labels
    readable = labels.get(ATTEMPT, "").isdecimal() and labels.get(POOL) in _ROLES
    return job_of(item) if readable else None


def cluster(item: RayClusterItem) -> Cluster:
    """A RayCluster. Groups of names that the operator never gives are left out; the attempt of one that
    somebody else made is 0."""
    metadata = item.metadata
    attempt = metadata.labels.get(ATTEMPT, "")
    groups = [
        Group(
            _POOL_OF[group.group_name],
            group.replicas,
            tuple((group.scale_strategy and group.scale_strategy.workers_to_delete) or ()),
        )
        for group in item.spec.worker_group_specs
        if group.group_name in _POOL_OF
    ]
    return Cluster(
        name=metadata.name,
        uid=metadata.uid,
        owner=controller_uid(item),
        attempt=int(attempt) if attempt.isdecimal() else 0,
        created=_time(metadata.creation_timestamp),
        deleting=metadata.deletion_timestamp is not None,
        groups=tuple(groups),
        status_seen=bool(item.status),
        refusal=_failure(item),
        queue=metadata.labels.get(QUEUE) or None,
        suspended=item.spec.suspend is True,
        provisioned=_provisioned(item),
        record=record_of(metadata.annotations),
        head=metadata.annotations.get(HEAD) or None,
    )


def pod(item: PodItem) -> Pod:
    """A pod."""
    metadata, status, labels = item.metadata, item.status, item.metadata.labels
    conditions = {condition.type: condition for condition in status.conditions}
    ready, scheduled = conditions.get("Ready"), conditions.get("PodScheduled")
    unschedulable = scheduled is not None and scheduled.status == "False"
    # `pod_job` has refused every other role.
    role: Role = next(role for role in _ROLES if role == labels[POOL])
    return Pod(
        name=metadata.name,
        uid=metadata.uid,
        role=role,
        attempt=int(labels[ATTEMPT]),
        cluster=labels.get("ray.io/cluster", ""),
        cluster_uid=_cluster_uid(item),
        created=_time(metadata.creation_timestamp),
        phase=status.phase if status.phase in _PHASES else "Unknown",  # type: ignore[arg-type]
        ready=ready is not None and ready.status == "True",
        # When it is to be gone: the time of the request and the grace period.
        deleting=_time(metadata.deletion_timestamp) if metadata.deletion_timestamp else None,
        deletion_grace=metadata.deletion_grace_period_seconds or 0,
        node=item.spec.node_name,
        unschedulable=scheduled.message if scheduled is not None and unschedulable else None,
        # Init containers first: the others wait for them.
        waiting=_waiting([*status.init_container_statuses, *status.container_statuses]) or _failed_init(item),
        disrupted=_disrupted(item),
        eviction=clip(status.message) if status.reason == EVICTED or _rejected(status.reason) else "",
        driver=_end(status.container_statuses, (DRIVER_CONTAINER,)),
        main=_end(status.container_statuses, _MAIN) or _init_end(item),
        helper=_helper(status.container_statuses),
    )


@dataclass(frozen=True, slots=True)
class ClusterWarning:
    """A warning Event about a RayCluster."""

    cluster_uid: str
    message: str
    time: str
    """When it came last, RFC 3339."""


def warned_job(item: CoreEvent) -> JobRef | None:
    """The RLJob whose RayCluster an Event is about, by the name that an attempt's RayCluster has; there may
    be none of that name."""
    job, _, attempt = item.involved_object.name.rpartition("-")
    return (item.metadata.namespace, job) if job and attempt.isdecimal() else None


def cluster_warning(item: CoreEvent) -> ClusterWarning:
    """A warning Event about a RayCluster."""
    return ClusterWarning(
        item.involved_object.uid,
        clip(item.message),
        item.last_timestamp or item.event_time or item.metadata.creation_timestamp,
    )


def _failure(item: RayClusterItem) -> str | None:
    """Why KubeRay cannot make the pods, such as a quota that is used up."""
    for condition in item.status.get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return str(condition.get("message") or condition.get("reason"))
    return None


def _provisioned(item: RayClusterItem) -> datetime | None:
    for condition in item.status.get("conditions") or ():
        if condition.get("type") == "RayClusterProvisioned" and condition.get("status") == "True":
            try:
                return moment(str(condition.get("lastTransitionTime")))
            # KubeRay's time, not ours: one that cannot be read must not hold up the job.
            except (ValueError, OverflowError):
                return None
    return None


def _cluster_uid(item: PodItem) -> str:
    """UID of the RayCluster that owns a pod, where it is the one that all of the pod's labels tell; else
    empty."""
    labels = item.metadata.labels
    name = f"{labels.get(JOB)}-{labels.get(ATTEMPT)}"
    return (ray_cluster_uid(item, name) if labels.get("ray.io/cluster") == name else None) or ""


def _time(text: str) -> datetime:
    return moment(text) if text else _NO_TIME


def _waiting(containers: list[ContainerStatus]) -> str | None:
    for container in containers:
        waiting = container.state.waiting
        if waiting is not None and waiting.reason not in _STARTING:
            return f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
    return None


def _init_end(item: PodItem) -> ContainerEnd | None:
    """The end of the init container that kept the pod's containers from starting: Ray's, too, is over then.
    Its name is in the message."""
    if item.status.phase != "Failed" or _started(item):
        return None
    for container in item.status.init_container_statuses:
        ended = container.state.terminated
        if ended is not None and ended.exit_code != 0:
            text = f"init container {container.name}" + (f": {ended.message}" if ended.message else "")
            return ContainerEnd(ended.exit_code, ended.reason, text, _time(ended.finished_at or ""))
    return None


def _started(item: PodItem) -> bool:
    return any(each.state.terminated is not None for each in item.status.container_statuses)


def _failed_init(item: PodItem) -> str | None:
    """The end of that init container for people, as the reason that the containers do not start; None
    where the cluster ended the pod, which is the reason then."""
    end = _init_end(item)
    if end is None or _disrupted(item) is not None:
        return None
    return f"{end.reason}, exit code {end.exit_code}, {end.message}"


def _disrupted(item: PodItem) -> str | None:
    for condition in item.status.conditions:
        # The kubelet marks a pod that it evicts from a node that runs short, or that shuts down; one that has
        # used more than its own limits it does not mark.
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return condition.reason or "DisruptionTarget"
    reason = item.status.reason
    return reason if reason in _DISRUPTIONS or _rejected(reason) else None


def _rejected(reason: str) -> bool:
    return reason in _REJECTIONS or reason.startswith(_NO_ROOM)


def _end(containers: list[ContainerStatus], names: tuple[str, ...]) -> ContainerEnd | None:
    for container in containers:
        ended = container.state.terminated
        if container.name in names and ended is not None:
            return _ended(ended)
    return None


def _helper(containers: list[ContainerStatus]) -> Helper | None:
    ends = [
        Helper(container.name, _ended(container.state.terminated))
        for container in containers
        if container.name not in (*_MAIN, DRIVER_CONTAINER) and container.state.terminated is not None
    ]
    return min(ends, key=lambda helper: helper.end.finished, default=None)


def _ended(state: ContainerTerminated) -> ContainerEnd:
    return ContainerEnd(state.exit_code, state.reason, state.message, _time(state.finished_at or ""))
