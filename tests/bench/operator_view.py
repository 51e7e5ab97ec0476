"""What the benchmarks of the operator see of a namespace: RLJobs, RayClusters and pods, as they change."""

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Any

from rljob_client.objects import Item
from rljob_client.resources import PODS, RAY_CLUSTERS, RLJOBS, Resource
from rljob_operator.controller.items import PodItem
from rljob_operator.controller.project import cluster_job, pod_job
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.informer import Informer, Selection
from tests.support.operator.kube_site import Site
from tests.support.operator.scaling_site import JobItem

_SECONDS = 1800.0
"""For anything that all jobs must do."""


class View:
    """Objects of a namespace as they change, and waits that their changes wake."""

    def __init__(self, made: Site, namespace: str) -> None:
        self.client: ApiClient = made.client
        self._namespace = namespace
        self._woken = asyncio.Event()
        self.jobs = self._informer(made, RLJOBS, JobItem, _ref, _phase_and_ready)
        self.clusters = self._informer(made, RAY_CLUSTERS, Item, cluster_job, lambda item: item.metadata.name)
        self.pods = self._informer(made, PODS, PodItem, pod_job, _pool)

    def _informer(
        self,
        made: Site,
        resource: Resource,
        item: type[Any],
        owner: Callable[[Any], Any],
        project: Callable[[Any], Any],
    ) -> Informer[Any, Any, Any]:
        selection = Selection(resource, item, owner, project, self._namespace)
        return Informer(made.client, selection, lambda _: self._woken.set(), made.metrics, Random(0))

    async def until(self, done: Callable[[], bool]) -> float:
        """When `done` first held, on the monotonic clock. TimeoutError."""
        async with asyncio.timeout(_SECONDS):
            while not done():
                self._woken.clear()
                await self._woken.wait()
        return time.monotonic()

    def run(self, group: asyncio.TaskGroup) -> list["asyncio.Task[None]"]:
        """Begin to look; cancel these in the end."""
        return [group.create_task(each.run()) for each in (self.jobs, self.clusters, self.pods)]

    def state(self, number: int) -> tuple[str, int]:
        """Phase of a job, and its ready fast rollout workers."""
        ref = (self._namespace, f"job-{number}")
        found: list[tuple[str, int]] = list(self.jobs.of(ref).values())
        return found[0] if found else ("", 0)


def _ref(item: JobItem) -> tuple[str, str]:
    return item.metadata.namespace, item.metadata.name


def _phase_and_ready(item: JobItem) -> tuple[str, int]:
    pools = {entry["name"]: entry["ready"] for entry in item.status.get("pools", ())}
    return item.status.get("phase", ""), pools.get("fastRollout", 0)


def _pool(item: PodItem) -> tuple[str, str]:
    return item.metadata.name, item.metadata.labels.get("rljob.dev/pool", "")
