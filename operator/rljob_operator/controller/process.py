"""The operator's process: its parts, and their beginning and end.

Guarantees: of all replicas only the holder of the lease writes; on SIGTERM what is under way is finished and
the lease given back. A process that lost its lease, as it does while the API server is away, remembers
nothing and begins anew; any other failure of a part ends it.
"""

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from rljob_operator.controller.act import Actor
from rljob_operator.controller.items import PodItem, RayClusterItem
from rljob_operator.controller.jobs import JobStore
from rljob_operator.controller.kopf_events import watch_jobs
from rljob_operator.controller.kuberay_schema import KubeRaySchema
from rljob_operator.controller.observe import Informers, LastHeads, Observer
from rljob_operator.controller.project import JobRef, cluster_job, pod, pod_job
from rljob_operator.controller.reconcile import Reconciler
from rljob_operator.controller.written import WrittenClusters, seen_cluster
from rljob_operator.kube.client import ApiClient, ClientSettings
from rljob_operator.kube.credentials import find_credentials
from rljob_operator.kube.errors import ApiError
from rljob_operator.kube.events import EventRecorder
from rljob_operator.kube.fence import Fence, LeaseLost
from rljob_operator.kube.http import HealthServer
from rljob_operator.kube.informer import Informer, Selection
from rljob_operator.kube.lease import LeaderElection
from rljob_operator.kube.objects import Item
from rljob_operator.kube.resources import PODS, RAY_CLUSTERS, RLJOBS
from rljob_operator.kube.token_bucket import TokenBucket
from rljob_operator.kube.transport import Transport
from rljob_operator.kube.work_queue import QueueSettings, WorkQueue
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.render.labels import JOB

log = logging.getLogger(__name__)

FIELD_MANAGER = "rljob-operator"
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 2.0
"""Between two looks whether RLJobs are served."""


@dataclass(frozen=True)
class Options:
    """What is set on the command line."""

    kubeconfig: Path | None = None
    namespace: str | None = None
    """Where RLJobs are looked for; None: everywhere."""
    lease_namespace: str | None = None
    """Where the lease is; None: the process's own namespace."""
    lease_name: str = "rljob-operator"
    port: int = 8080
    """Of /healthz, /readyz and /metrics."""
    host: str | None = None
    workers: int = 16
    """Jobs that are reconciled at a time."""
    writes_per_second: float = 200.0
    burst: int = 400


class OperatorProcess:
    """One replica."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._metrics = OperatorMetrics()
        self._random = Random()
        self._identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self._stop = asyncio.Event()
        self._failed: BaseException | None = None
        self._queue: WorkQueue[JobRef] | None = None
        self._jobs = JobStore(self._changed)
        self._informers: Informers | None = None
        self._heads = LastHeads()
        self._leading = False

    async def run(self) -> int | None:
        """Until SIGTERM or SIGINT, or a failure; the exit code. None: begin anew, with another instance."""
        options = self._options
        credentials = find_credentials(options.kubeconfig)
        async with AsyncExitStack() as stack:
            transport = await stack.enter_async_context(Transport(credentials, self._metrics))
            client = ApiClient(
                transport,
                self._metrics,
                ClientSettings(FIELD_MANAGER),
                self._random,
                TokenBucket(options.writes_per_second, options.burst),
            )
            self._informers = Informers(
                clusters=Informer(
                    client,
                    Selection(
                        RAY_CLUSTERS, RayClusterItem, cluster_job, seen_cluster, options.namespace, JOB
                    ),
                    self._changed,
                    self._metrics,
                    self._random,
                ),
                pods=Informer(
                    client,
                    Selection(PODS, PodItem, pod_job, pod, options.namespace, JOB),
                    self._pods_changed,
                    self._metrics,
                    self._random,
                ),
            )
            health = HealthServer(self._metrics, self._alive, self._ready, options.port, options.host)
            await stack.enter_async_context(health)
            log.info("serving /healthz, /readyz and /metrics on port %d", health.port)
            parts = await stack.enter_async_context(AsyncExitStack())
            self._start(parts, "clusters", self._informers.clusters.run())
            self._start(parts, "pods", self._informers.pods.run())
            election = LeaderElection(
                transport,
                options.lease_namespace or credentials.namespace,
                options.lease_name,
                self._identity,
                self._metrics,
                self._random,
            )
            self._start(parts, "leader", self._lead(election, transport, client))
            if await self._served(client):
                await watch_jobs(self._jobs, credentials, options.namespace, self._stop, parts.aclose)
        if isinstance(self._failed, LeaseLost):
            log.warning("all is read anew: %s", self._failed)
            return None
        if self._failed is not None:
            log.error("the operator ends: %s", self._failed)
            return 1
        return 0

    async def _served(self, client: ApiClient) -> bool:
        """Wait until the API server serves RLJobs, or the process is to stop. kopf looks only once: an API
        server that has just started may not serve what is defined in it."""
        while not self._stop.is_set():
            try:
                async for _ in client.pages(RLJOBS, Item, self._options.namespace, page_size=1):
                    return True
            except ApiError as error:
                log.warning("no RLJobs yet: %s", error)
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._stop.wait()
            except TimeoutError:
                continue
        return False

    def _changed(self, ref: JobRef) -> None:
        if self._queue is not None:
            self._queue.add(ref)

    def _pods_changed(self, ref: JobRef) -> None:
        if self._informers is not None:
            self._heads.see(ref, self._informers.pods.of(ref).values())
        self._changed(ref)

    def _start(self, stack: AsyncExitStack, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a part until the process ends; the process ends when the part fails."""

        def ended(task: "asyncio.Task[None]") -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._failed = error
                if not isinstance(error, LeaseLost):
                    log.error("%s failed", name, exc_info=error)
                self._stop.set()

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        task = asyncio.create_task(work, name=name)
        task.add_done_callback(ended)
        stack.push_async_callback(end)

    async def _lead(self, election: LeaderElection, transport: Transport, client: ApiClient) -> None:
        async with election.held() as fence:
            await self._work(fence, transport, client)

    async def _work(self, fence: Fence, transport: Transport, unfenced: ApiClient) -> None:
        """What the holder of the lease does."""
        informers = self._informers
        assert informers is not None
        await informers.clusters.synced.wait()
        await informers.pods.synced.wait()
        client = unfenced.fenced(fence)
        kuberay = KubeRaySchema(transport, time.monotonic)
        written = WrittenClusters()
        recorder = EventRecorder(self._identity, self._metrics, self._random)
        reconciler = Reconciler(
            self._jobs,
            Observer(informers, kuberay, client, written, self._heads, time.monotonic),
            Actor(client, kuberay, written, time.monotonic),
            client,
            recorder,
            self._metrics,
            lambda: datetime.now(UTC),
            self._random,
        )
        self._queue = WorkQueue(
            reconciler.reconcile, self._metrics, self._random, QueueSettings(self._options.workers)
        )
        recorder.start(client)
        for ref in self._jobs.refs():
            self._queue.add(ref)
        self._queue.start()
        self._leading = True
        try:
            await asyncio.get_running_loop().create_future()  # until cancelled
        finally:
            self._leading = False
            await self._queue.stop(_STOP_SECONDS)
            await recorder.stop(_STOP_SECONDS)

    def _alive(self) -> str | None:
        """That this answers shows that the loop runs, which is all that a restart would mend."""
        return None if self._failed is None else str(self._failed)

    def _ready(self) -> str | None:
        informers = self._informers
        if informers is None or not (informers.clusters.synced.is_set() and informers.pods.synced.is_set()):
            return "the RayClusters and pods have not been listed yet"
        trouble = informers.clusters.trouble or informers.pods.trouble
        return f"no connection to the API server: {trouble}" if trouble else None
