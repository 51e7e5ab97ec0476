"""The operator's process: its parts, and their beginning and end.

Guarantees: of all replicas, and of all releases that watch the same jobs, only the holder of the leases
writes; on SIGTERM what is under way is finished and the leases are given back. A process that lost a lease,
as it does while the API server is away, remembers nothing and begins anew; any other failure of a part ends
it.
"""

import asyncio
import logging
import os
import secrets
import socket
import time
import uuid
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, get_args

from rljob_api.status import Phase
from rljob_client.client import ClientSettings
from rljob_client.credentials import find_credentials
from rljob_client.errors import ApiError
from rljob_client.objects import Item
from rljob_client.resources import RLJOBS
from rljob_client.transport import Transport
from rljob_operator.controller.act import Actor
from rljob_operator.controller.definition import Definition
from rljob_operator.controller.elsewhere import Elsewhere
from rljob_operator.controller.jobs import JobStore
from rljob_operator.controller.kopf_events import KopfEnded, watch_jobs
from rljob_operator.controller.kuberay_schema import KubeRaySchema
from rljob_operator.controller.leadership import CLUSTER_LEASE, NAMESPACE_LEASE, Leadership
from rljob_operator.controller.lost_workers import LostWorkers
from rljob_operator.controller.mutation_cache import MutationCache
from rljob_operator.controller.observe import LastHeads, Observer
from rljob_operator.controller.pacing import gather_seconds
from rljob_operator.controller.project import JobRef
from rljob_operator.controller.reconcile import Reconciler
from rljob_operator.controller.stopping import StopSignals, in_thread, unless
from rljob_operator.controller.watched import Informers, informers
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.event_recorder import EventRecorder
from rljob_operator.kube.fence import Fence, LeaseLost
from rljob_operator.kube.http import HealthServer
from rljob_operator.kube.informer import HistoryLost
from rljob_operator.kube.lease import LeaderElection
from rljob_operator.kube.token_bucket import TokenBucket
from rljob_operator.kube.work_queue import QueueSettings, WorkQueue
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.plan.observed import POOLS
from rljob_operator.plan.pools import wanted as replicas
from rljob_operator.render.images import RuntimeImages

log = logging.getLogger(__name__)

FIELD_MANAGER = "rljob-operator"
_STOP_SECONDS = 10.0
"""For the handlers that are under way, and as long again for Events that wait: both end, and the lease is
given back, before the kubelet kills the process (terminationGracePeriodSeconds of the chart)."""
_LOOK_SECONDS = 2.0
"""Between two looks whether RLJobs are served."""
_BEHIND_SECONDS = 1.0
"""By then the informer has brought the version of a job that kopf tells of, unless its connection is dead."""


@dataclass(frozen=True)
class Options:
    """What is set on the command line."""

    kubeconfig: Path | None = None
    namespace: str | None = None
    """Where RLJobs are looked for; None: everywhere."""
    lease_namespace: str | None = None
    """Where the lease is; None: the process's own namespace."""
    lease_name: str = "rljob-operator"
    """The same in all replicas; two operators that share it would be replicas of one another."""
    cluster_lease_namespace: str = "kube-system"
    """Where the lease is that all operators share which look everywhere."""
    lease_role: str | None = None
    """Name of the Role beside the lease that owns it; None: nobody does."""
    shared_lease_role: str | None = None
    """The same of the lease that releases share."""
    port: int = 8080
    """Of /healthz, /readyz and /metrics."""
    host: str | None = None
    workers: int = 16
    """Jobs that are reconciled at a time."""
    writes_per_second: float = 200.0
    burst: int = 400
    runtime_images: RuntimeImages = field(default_factory=dict)
    """For jobs that name no image."""


class OperatorProcess:
    """One replica."""

    def __init__(self, options: Options, signals: StopSignals, metrics: OperatorMetrics) -> None:
        """`metrics`: of the process, whose instances come one after the other."""
        self._options = options
        self._signals = signals
        self._metrics = metrics
        self._random = Random()
        # A name that no other process has, not even the next one of this pod.
        self._identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self._stop = asyncio.Event()
        self._failed: BaseException | None = None
        self._queue: WorkQueue[JobRef] | None = None
        self._jobs = JobStore(self._changed, options.runtime_images)
        self._informers: Informers | None = None
        self._definition: Definition | None = None
        self._leadership: Leadership | None = None
        self._elsewhere: Elsewhere | None = None
        self._heads = LastHeads()
        self._workers = LostWorkers()
        self._leading = False
        self._metrics.begin(get_args(Phase), self._count)

    async def run(self) -> int | None:
        """Until SIGTERM or SIGINT, or a failure; the exit code. None: begin anew, with another instance.
        Raises `CredentialsError` and `CannotListen`."""
        options, signals = self._options, self._signals
        # It may run a command that takes a minute.
        finding = in_thread(partial(find_credentials, options.kubeconfig))
        if (credentials := await unless(signals.came, finding)) is None:
            return 0
        async with AsyncExitStack() as stack:
            transport = await stack.enter_async_context(
                Transport(credentials, self._metrics, "rljob-operator")
            )
            client = ApiClient(
                transport,
                self._metrics,
                ClientSettings(FIELD_MANAGER),
                self._random,
                TokenBucket(options.writes_per_second, options.burst),
            )
            self._elsewhere = Elsewhere(client, time.monotonic, self._namespace_changed)
            self._informers = informers(
                client,
                options.namespace,
                self._jobs,
                self._changed,
                self._pods_changed,
                self._metrics,
                self._random,
                self._elsewhere if options.namespace is None else None,
            )
            # Before anything that waits for the API server: a pod whose probes get no answer is restarted.
            health = HealthServer(self._metrics, self._alive, self._ready, options.port, options.host)
            await stack.enter_async_context(health)
            log.info("serving /healthz, /readyz and /metrics on port %d", health.port)
            # In a stack within: the parts end first, and probes are answered until they have.
            parts = await stack.enter_async_context(AsyncExitStack())
            self._start(parts, "signals", self._heed())
            self._definition = Definition(transport, self._all_changed)
            self._start(parts, "definition", self._definition.run())
            for informer in self._informers:
                self._start(parts, informer.plural, informer.run())
            self._leadership = self._leaders(transport, options.lease_namespace or credentials.namespace)
            # The last part, and so the first to end: what it has under way still needs the informers.
            self._start(parts, "leader", self._lead(self._leadership, transport, client))
            if await unless(self._stop, self._served(client)):
                try:
                    await watch_jobs(
                        self._heard, credentials, options.namespace, self._stop, parts.aclose, signals.take
                    )
                except KopfEnded as error:
                    log.warning("kopf has ended, all begins anew: %s", error)
                    return None
        if isinstance(self._failed, (LeaseLost, HistoryLost)):
            log.warning("all is read anew: %s", self._failed)
            return None
        if self._failed is not None:
            log.error("the operator ends: %s", self._failed)
            return 1
        return 0

    async def _heed(self) -> None:
        await self._signals.came.wait()
        self._stop.set()

    async def _served(self, client: ApiClient) -> bool:
        """Wait until the API server serves RLJobs. kopf looks only once: an API server that has just started
        may not serve what is defined in it."""
        while True:
            try:
                async for _ in client.pages(RLJOBS, Item, self._options.namespace, page_size=1):
                    return True
            except ApiError as error:
                log.warning("no RLJobs yet: %s", error)
            await asyncio.sleep(_LOOK_SECONDS)

    def _heard(self, item: Mapping[str, Any]) -> None:
        """kopf tells of a job. The informer most likely knows; where it does not in time, the job is read."""
        if self._jobs.heard(item) and self._queue is not None:
            self._queue.add((item["metadata"]["namespace"], item["metadata"]["name"]), _BEHIND_SECONDS)

    def _changed(self, ref: JobRef) -> None:
        entry = self._jobs.get(ref)
        # Pods go some time after their RLJob: each of their changes until then would be remembered again.
        if entry is None and self._informers is not None and not self._informers.pods.of(ref):
            self._heads.forget(ref)
            self._workers.forget(ref)
        if self._queue is not None:
            # A job of which nothing was made yet is not to wait for others' counts.
            self._queue.add(ref, first=entry is not None and entry.job.status.attempt == 0)

    def _namespace_changed(self, namespace: str) -> None:
        for ref in self._jobs.refs():
            if ref[0] == namespace:
                self._changed(ref)

    def _all_changed(self) -> None:
        for ref in self._jobs.refs():
            self._changed(ref)

    def _pods_changed(self, ref: JobRef) -> None:
        assert self._informers is not None
        pods = self._informers.pods.of(ref).values()
        entry = self._jobs.get(ref)
        if not self._leading or (self._elsewhere is not None and self._elsewhere.left(ref[0])):
            self._workers.forget(ref)  # who was lost before this replica led was told by another one
        self._heads.see(ref, pods)
        self._workers.see(ref, pods)
        if entry is None or entry.job.spec is None:
            self._changed(ref)
        elif self._queue is not None:
            wanted = 1 + sum(replicas(entry.job.spec, pool) for pool in POOLS)
            ready = sum(pod.ready for pod in pods)
            starting = self._count("Starting")
            self._queue.add(ref, gather_seconds(entry.job.status.phase, ready >= wanted, starting))

    def _start(self, stack: AsyncExitStack, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a part until the process ends; the process ends when the part fails."""

        def ended(task: "asyncio.Task[None]") -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._failed = error
                if not isinstance(error, (LeaseLost, HistoryLost)):
                    log.error("%s failed", name, exc_info=error)
                self._stop.set()

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        task = asyncio.create_task(work, name=name)
        task.add_done_callback(ended)
        stack.push_async_callback(end)

    def _leaders(self, transport: Transport, own_namespace: str) -> Leadership:
        options, who, metrics, random = self._options, self._identity, self._metrics, self._random
        name = CLUSTER_LEASE if options.namespace is None else NAMESPACE_LEASE
        scope = options.namespace or options.cluster_lease_namespace
        elect = partial(LeaderElection, identity=who, observer=metrics, random=random)
        return Leadership(
            elect(transport, own_namespace, options.lease_name, tells=False, role=options.lease_role),
            elect(transport, scope, name, role=options.shared_lease_role),
        )

    async def _lead(self, leadership: Leadership, transport: Transport, client: ApiClient) -> None:
        async with leadership.held() as fences:
            await self._work(fences, transport, client)

    async def _work(self, fences: tuple[Fence, ...], transport: Transport, unfenced: ApiClient) -> None:
        """What the holder of the leases does."""
        watched, definition, elsewhere = self._informers, self._definition, self._elsewhere
        assert watched is not None and definition is not None and elsewhere is not None
        # Its own task looks until that is known, and ends the process where it fails. Not known, every status
        # might be refused.
        await definition.known.wait()
        # A watch may have died unnoticed while this replica waited for the lease: list before deciding.
        await asyncio.gather(*(informer.refresh() for informer in watched))
        client = unfenced.fenced(*fences)
        kuberay = KubeRaySchema(transport, time.monotonic)
        mutations = MutationCache()
        recorder = EventRecorder(self._identity, self._metrics, self._random)
        reconciler = Reconciler(
            self._jobs,
            Observer(watched, kuberay, client, mutations, self._heads, self._workers, time.monotonic),
            Actor(
                client,
                kuberay,
                mutations,
                time.monotonic,
                secrets.token_bytes,
                self._options.runtime_images,
            ),
            client,
            recorder,
            definition,
            self._metrics,
            lambda: datetime.now(UTC),
            self._random,
            elsewhere.wait,
        )
        self._queue = WorkQueue(
            reconciler.reconcile, self._metrics, self._random, QueueSettings(self._options.workers)
        )
        recorder.start(client)
        self._all_changed()
        self._queue.start()
        self._leading = True
        try:
            await asyncio.get_running_loop().create_future()  # until cancelled
        finally:
            self._leading = False
            await self._queue.stop(_STOP_SECONDS)
            await recorder.stop(_STOP_SECONDS)

    def _count(self, phase: str) -> int:
        """The jobs of a phase that are this replica's: summed over all replicas of all operators, each job
        counts once."""
        if not self._leading or self._elsewhere is None:
            return 0
        return self._jobs.count(phase, self._elsewhere.left)

    def _alive(self) -> str | None:
        """That this answers shows that the loop runs, which is all that a restart would mend."""
        return None if self._failed is None else str(self._failed)

    def _ready(self) -> str | None:
        watched = self._informers
        if watched is None or not all(informer.synced.is_set() for informer in watched):
            why = "" if watched is None or watched.trouble is None else f": {watched.trouble}"
            return f"the RLJobs, RayClusters and pods have not been listed yet{why}"
        if watched.trouble is not None:
            return f"no connection to the API server: {watched.trouble}"
        if not watched.jobs.served:
            return (
                f"the API server serves no {RLJOBS.plural}.{RLJOBS.group}: apply their "
                "CustomResourceDefinition, which comes with the operator's release"
            )
        if self._definition is None or not self._definition.known.is_set():
            return "the definition of RLJobs has not been looked at yet"
        if self._leadership is not None and self._leadership.trouble is not None:
            return f"no lease can be asked for: {self._leadership.trouble}"
        return self._definition.trouble
