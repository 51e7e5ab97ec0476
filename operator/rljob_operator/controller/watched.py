"""What is kept in memory of the RLJobs and of their objects.

Guarantees: of each object only what decisions rest on, found by its job.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from rljob_client.client import WatchLimits
from rljob_client.resources import CORE_EVENTS, LEASES, PODS, RAY_CLUSTERS, RLJOBS
from rljob_operator.controller.elsewhere import Elsewhere
from rljob_operator.controller.items import CoreEvent, PodItem, RayClusterItem, RLJobItem
from rljob_operator.controller.jobs import Entry, JobStore, job_key
from rljob_operator.controller.leadership import NAMESPACE_LEASE
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
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.informer import Informer, Selection
from rljob_operator.kube.informer_store import Key, ValueT
from rljob_operator.kube.lease import Lease, lease_record
from rljob_operator.kube.lease_rules import LeaseRecord
from rljob_operator.kube.observer import KubeObserver
from rljob_operator.kube.watch_rules import WatchRules
from rljob_operator.plan.observed import Pod
from rljob_operator.render.labels import JOB

_WARNINGS = "involvedObject.kind=RayCluster,type=Warning"
_WARNING_LIMITS = WatchLimits(server_seconds=60)
"""API servers send no bookmarks in watches of Events: their silence does not tell of a dead connection until
they should have ended."""
_JOB_RULES = WatchRules(absent_seconds=2.0)
"""Nothing can be done before there is a definition of RLJobs, and it may be made at any moment."""


@dataclass(frozen=True)
class Informers:
    """One for each type of object."""

    jobs: Informer[RLJobItem, JobRef, Entry]
    clusters: Informer[RayClusterItem, JobRef, SeenCluster]
    pods: Informer[PodItem, JobRef, Pod]
    warnings: Informer[CoreEvent, JobRef, ClusterWarning]
    """Events about RayClusters."""
    leases: Informer[Lease, str, LeaseRecord] | None = None
    """Of operators of one namespace, by namespace; None where this operator is one."""

    def __iter__(self) -> Iterator[Informer[Any, Any, Any]]:
        yield from (self.jobs, self.clusters, self.pods, self.warnings)
        if self.leases is not None:
            yield self.leases

    @property
    def trouble(self) -> str | None:
        """Why they may be out of date; None while they are not."""
        return next((each.trouble for each in self if each.trouble), None)


def informers(
    client: ApiClient,
    namespace: str | None,
    store: JobStore,
    changed: Callable[[JobRef], None],
    pods_changed: Callable[[JobRef], None],
    observer: KubeObserver,
    random: Random,
    elsewhere: Elsewhere | None = None,
) -> Informers:
    """Informers that bring the jobs into `store`, and call `changed`, or for pods `pods_changed`, for each
    job whose objects differ. `elsewhere` is told of Leases."""
    jobs = Selection(RLJOBS, RLJobItem, job_key, store.read, namespace)
    clusters = Selection(RAY_CLUSTERS, RayClusterItem, cluster_job, seen_cluster, namespace, JOB)
    pods = Selection(PODS, PodItem, pod_job, pod, namespace, JOB)
    # Events have no labels to select by; most Events of a cluster are about other kinds.
    warnings = Selection(
        CORE_EVENTS, CoreEvent, warned_job, cluster_warning, namespace, field_selector=_WARNINGS
    )
    of_jobs = Informer(
        client, jobs, lambda ref: store.seen(ref, _only(of_jobs.of(ref))), observer, random, _JOB_RULES
    )
    return Informers(
        of_jobs,
        Informer(client, clusters, changed, observer, random),
        Informer(client, pods, pods_changed, observer, random),
        Informer(client, warnings, changed, observer, random, limits=_WARNING_LIMITS),
        None if elsewhere is None else _leases(client, elsewhere, observer, random),
    )


def _leases(
    client: ApiClient, elsewhere: Elsewhere, observer: KubeObserver, random: Random
) -> Informer[Lease, str, LeaseRecord]:
    chosen = Selection(
        LEASES,
        Lease,
        lambda item: item.metadata.namespace,
        lease_record,
        field_selector=f"metadata.name={NAMESPACE_LEASE}",
    )
    found: Informer[Lease, str, LeaseRecord] = Informer(
        client, chosen, lambda name: elsewhere.seen(name, _only(found.of(name))), observer, random
    )
    return found


def _only(entries: Mapping[Key, ValueT]) -> ValueT | None:
    """Of an owner that has one object: a job owns itself alone, a namespace one Lease of that name."""
    return next(iter(entries.values()), None)
