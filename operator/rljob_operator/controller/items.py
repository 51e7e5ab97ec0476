"""The fields of RayClusters, pods and Events that the operator reads, as the API server writes them."""

from typing import Any

import msgspec

from rljob_client.objects import Item, ObjectMeta


# gc=False here and below: they form no cycles, and the collector need not look at each of 10,000 pods.
class ContainerTerminated(msgspec.Struct, rename="camel", gc=False):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerWaiting(msgspec.Struct, rename="camel", gc=False):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct, rename="camel", gc=False):
    """How a container stands: waiting, ended or, where both are None, running."""

    terminated: ContainerTerminated | None = None
    waiting: ContainerWaiting | None = None


class ContainerStatus(msgspec.Struct, rename="camel", gc=False):
    """A container of a pod."""

    name: str
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class PodCondition(msgspec.Struct, rename="camel", gc=False):
    """An aspect of a pod's state."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(msgspec.Struct, rename="camel", gc=False):
    """A pod's state."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: list[PodCondition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class PodSpec(msgspec.Struct, rename="camel", gc=False):
    """Where a pod runs."""

    node_name: str | None = None


class PodMeta(ObjectMeta, rename="camel", gc=False):
    """Metadata of a pod."""

    deletion_grace_period_seconds: int | None = None


class PodItem(Item, gc=False):
    """A pod."""

    metadata: PodMeta
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class ScaleStrategy(msgspec.Struct, rename="camel", gc=False):
    """Which workers go."""

    workers_to_delete: list[str] | None = None


class WorkerGroup(msgspec.Struct, rename="camel", gc=False):
    """A worker group, without its template."""

    group_name: str
    replicas: int = 0
    scale_strategy: ScaleStrategy | None = None


class RayClusterSpec(msgspec.Struct, rename="camel", gc=False):
    """The groups, and whether there are to be pods."""

    suspend: bool | None = None
    worker_group_specs: list[WorkerGroup] = []


class RLJobItem(Item, gc=False):
    """An RLJob; spec and status are parsed by their models."""

    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class RayClusterMeta(ObjectMeta, rename="camel", gc=False):
    """Metadata of a RayCluster."""

    annotations: dict[str, str] = {}


class RayClusterItem(Item, gc=False):
    """A RayCluster."""

    metadata: RayClusterMeta
    spec: RayClusterSpec = msgspec.field(default_factory=RayClusterSpec)
    status: dict[str, Any] = {}


class Involved(msgspec.Struct, rename="camel", gc=False):
    """What an Event is about."""

    name: str = ""
    uid: str = ""


class CoreEvent(Item, rename="camel", gc=False):
    """A core/v1 Event."""

    involved_object: Involved = msgspec.field(default_factory=Involved)
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None
