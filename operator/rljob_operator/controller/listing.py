"""A job's RayClusters and pods as the API server has them now, whatever the watches have told.

Guarantees: what is listed is not older than the call; an object that cannot be read counts as it was last
readable, as for an informer.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from rljob_client.objects import Item
from rljob_client.resources import PODS, RAY_CLUSTERS
from rljob_operator.controller.items import PodItem, RayClusterItem
from rljob_operator.controller.mutation_cache import SeenCluster, seen_cluster
from rljob_operator.controller.project import JobRef, cluster_job, pod, pod_job
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.informer_store import Key
from rljob_operator.plan.observed import Pod
from rljob_operator.render.labels import JOB

log = logging.getLogger(__name__)

ItemT = TypeVar("ItemT", bound=Item)
ValueT = TypeVar("ValueT")


async def list_clusters(
    client: ApiClient, ref: JobRef, known: Mapping[Key, SeenCluster]
) -> list[SeenCluster]:
    """The job's RayClusters; `known`: as the informer has them. Raises `ApiError`."""
    items = await client.list(RAY_CLUSTERS, RayClusterItem, ref[0], f"{JOB}={ref[1]}")
    return _projected((each for each in items if cluster_job(each) == ref), seen_cluster, known)


async def list_pods(client: ApiClient, ref: JobRef, known: Mapping[Key, Pod]) -> list[Pod]:
    """The job's pods; `known`: as the informer has them. Raises `ApiError`."""
    items = await client.list(PODS, PodItem, ref[0], f"{JOB}={ref[1]}")
    return _projected((each for each in items if pod_job(each) == ref), pod, known)


def _projected(
    items: Iterable[ItemT], project: Callable[[ItemT], ValueT], known: Mapping[Key, ValueT]
) -> list[ValueT]:
    found = []
    for item in items:
        key = item.metadata.namespace, item.metadata.name
        try:
            found.append(project(item))
        except Exception:
            log.exception("%s/%s cannot be read, and counts as it was", *key)
            found += [known[key]] if key in known else []
    return found
