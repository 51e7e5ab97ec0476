"""What is kept in memory of the jobs' objects besides the RLJobs themselves.

Guarantees: of each object only what decisions rest on, found by its job.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from rljob_operator.controller.items import CoreEvent, PodItem, RayClusterItem
from rljob_operator.controller.mutation_cache import SeenCluster, seen_cluster
from rljob_operator.controller.project import (
    ClusterWarning,
    JobRef,
    cluster_job,
    cluster_warning,
    pod,
    pod_job,
    warned_job,
)
from rljob_operator.kube.client import ApiClient, WatchLimits
from rljob_operator.kube.informer import Informer, Selection
from rljob_operator.kube.observer import KubeObserver
from rljob_operator.kube.resources import CORE_EVENTS, PODS, RAY_CLUSTERS
from rljob_operator.plan.observed import Pod
from rljob_operator.render.labels import JOB

_WARNINGS = "involvedObject.kind=RayCluster,type=Warning"
_WARNING_LIMITS = WatchLimits(server_seconds=60)
"""API servers send no bookmarks in watches of Events: their silence does not tell of a dead connection until
they should have ended."""


@dataclass(frozen=True)
class Informers:
    """One for each type of object."""

    clusters: Informer[RayClusterItem, JobRef, SeenCluster]
    pods: Informer[PodItem, JobRef, Pod]
    warnings: Informer[CoreEvent, JobRef, ClusterWarning]
    """Events about RayClusters."""

    def __iter__(self) -> Iterator[Informer[Any, JobRef, Any]]:
        yield from (self.clusters, self.pods, self.warnings)

    @property
    def trouble(self) -> str | None:
        """Why they may be out of date; None while they are not."""
        return next((each.trouble for each in self if each.trouble), None)


def informers(
    client: ApiClient,
    namespace: str | None,
    changed: Callable[[JobRef], None],
    pods_changed: Callable[[JobRef], None],
    observer: KubeObserver,
    random: Random,
) -> Informers:
    """Informers that call `changed`, or for pods `pods_changed`, for each job whose objects differ."""
    clusters = Selection(RAY_CLUSTERS, RayClusterItem, cluster_job, seen_cluster, namespace, JOB)
    pods = Selection(PODS, PodItem, pod_job, pod, namespace, JOB)
    # Events have no labels to select by; most Events of a cluster are about other kinds.
    warnings = Selection(
        CORE_EVENTS, CoreEvent, warned_job, cluster_warning, namespace, field_selector=_WARNINGS
    )
    return Informers(
        Informer(client, clusters, changed, observer, random),
        Informer(client, pods, pods_changed, observer, random),
        Informer(client, warnings, changed, observer, random, limits=_WARNING_LIMITS),
    )
