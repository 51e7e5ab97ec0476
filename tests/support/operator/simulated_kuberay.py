"""A Kubernetes with KubeRay, a runtime and a kubelet, as far as an RLJob notices: in memory, one step at a
time.

Guarantees: nothing happens by itself; whoever drives it decides what happens next, which random choice is
taken, and how old the operator's view is. Objects change as the real ones do:

- KubeRay reconciles as `reconcilePods` of v1.4 to v1.7 with autoscaling off: it deletes dead pods and ends
  the pass; it deletes every pod that workersToDelete names, whatever `replicas` says, and leaves those out
  of its count, but counts other pods that still terminate; it creates what is missing and deletes what is
  too much, and which pods those are is up to `choose`; it deletes all pods of a RayCluster that is suspended.
  Its view of RayClusters may be old, but not older than a pod that is gone;
- the runtime uses every rollout pod that has started, busy from then on, releases as many as the spec asks
  for, and takes one back only by a write that the API server would refuse if the operator had listed the pod
  meanwhile. Its trainer starts when there are as many pods as the spec asks for and the operator is not about
  to change that: its status is up to date with the spec and lists no resize of the trainer;
- a status is written with the resourceVersion that it was made from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from rljob_api.job import Spec
from rljob_api.status import CheckpointStatus, Status, TrainingStatus
from rljob_operator.plan import scaling
from rljob_operator.plan.attempt import dead
from rljob_operator.plan.observed import (
    GROUPS,
    POOLS,
    Cluster,
    ContainerEnd,
    Group,
    Job,
    Pod,
    Pool,
    Role,
)
from rljob_operator.plan.plan import (
    CreateCluster,
    ScaleGroup,
)
from rljob_operator.plan.pools import wanted
from rljob_operator.plan.times import stamp

TOTAL_STEPS = 100
TERMINATION_GRACE = 30
"""Seconds; Kubernetes' default."""


@dataclass
class Killed:
    """A worker that KubeRay deleted to make a group smaller, and that was not dead."""

    pod: str
    busy: bool
    named: bool
    """Whether workersToDelete named it: otherwise KubeRay chose it."""
    late: bool
    """Whether drainGraceSeconds were over when the group was patched."""


@dataclass
class Runtime:
    """The driver of one attempt."""

    attempt: int
    in_use: set[str] = field(default_factory=set)
    """Rollout pods that serve requests."""
    released: list[str] = field(default_factory=list)
    ranks: frozenset[str] = frozenset()
    """Trainer pods whose ranks run; empty while the trainer stands still."""
    stopped_for: int | None = None
    suspended_at: int | None = None
    step: int = 0
    checkpoint: int = 0
    generation: int = 0


class Conflict(Exception):
    """The object has changed since it was read."""


class SimulatedKuberay:
    """One namespace with one RLJob."""

    def __init__(self, job: Job, now: datetime, choose: Callable[[Sequence[Pod]], Pod]) -> None:
        self.now = now
        self.choose = choose
        self.job: Job | None = job
        self.version = 1
        self.clusters: dict[str, Cluster] = {}
        self.pods: dict[str, Pod] = {}
        self.runtime: Runtime | None = None
        self.serial = 0
        self.killed: list[Killed] = []
        self.late_pools: set[str] = set()
        """Pools that were made smaller after drainGraceSeconds."""
        self.late_names: set[str] = set()
        """Pods that were named after drainGraceSeconds."""
        self.kuberay_sees: dict[str, Cluster] = {}
        self.checkpoint = 0
        """Step of the newest checkpoint in the run folder."""
        self.causal = True
        """Whether KubeRay's view of RayClusters is never older than a pod that it sees gone."""

    # The API server

    def write_status(self, status: Status, version: int) -> None:
        """Server-side apply of the operator's part."""
        if self.job is None or version != self.version:
            raise Conflict
        training = self.job.status.training
        self._put_job(replace(self.job, status=status.model_copy(update={"training": training})))

    def _write_training(self, training: TrainingStatus, version: int) -> None:
        if self.job is None or version != self.version:
            raise Conflict
        old = self.job.status.training
        # Without its time: a report that says nothing new is not written.
        word = {"time": old.time, "completed": old.completed} if old is not None else {"time": None}
        if old is None or training.model_copy(update=word) != old:
            training = training.model_copy(update={**word, "time": stamp(self.now)})
            status = self.job.status.model_copy(update={"training": training})
            self._put_job(replace(self.job, status=status))

    def edit(self, spec: Spec) -> None:
        """A user changes the spec."""
        if self.job is not None and spec != self.job.spec:
            self._put_job(replace(self.job, spec=spec, generation=self.job.generation + 1))

    def _put_job(self, job: Job) -> None:
        self.job = job
        self.version += 1

    def create_cluster(self, action: CreateCluster) -> None:
        if self.job is None or self.job.spec is None or action.name in self.clusters:
            return
        self.serial += 1
        groups = tuple(Group(pool, wanted(self.job.spec, pool)) for pool in POOLS)
        self.clusters[action.name] = Cluster(
            action.name,
            f"cluster-{self.serial}",
            self.job.uid,
            action.attempt,
            self.now,
            False,
            groups,
            False,
            queue=self.job.queue.name if self.job.queue else None,
            suspended=self.job.queue is not None,
        )

    def delete_cluster(self, name: str, uid: str | None = None) -> None:
        """Background deletion: the object is gone at once, its pods get their deletionTimestamps."""
        cluster = self.clusters.get(name)
        if cluster is None or uid not in (None, cluster.uid):
            return
        del self.clusters[name]
        self.kuberay_sees.pop(name, None)
        for pod in list(self.pods.values()):
            if pod.cluster_uid == cluster.uid:
                self.delete_pod(pod.name)

    def delete_pod(self, name: str) -> None:
        pod = self.pods.get(name)
        if pod is not None and pod.deleting is None:
            gone = self.now + timedelta(seconds=TERMINATION_GRACE)
            self.pods[name] = replace(pod, deleting=gone, deletion_grace=TERMINATION_GRACE)

    def patch_group(self, action: ScaleGroup) -> str | None:
        """Check and patch as a plan asks; what failed it, or None."""
        cluster = self.clusters.get(action.cluster)
        if cluster is None or cluster.uid != action.cluster_uid:
            return "the RayCluster is another one"
        group = next(entry for entry in cluster.groups if entry.pool == action.pool)
        if (group.replicas, group.workers_to_delete) != (action.seen_replicas, action.seen_workers_to_delete):
            return "the group has changed"
        if action.checked:
            refused = scaling.refusal(action, self.group_pods(cluster, action.pool))
            if refused is not None:
                return refused
        self.set_group(action.cluster, Group(action.pool, action.replicas, action.workers_to_delete))
        return None

    def suspend_cluster(self, suspended: bool) -> None:
        """Kueue suspends the RayCluster of a job that it queues, or admits it."""
        for name, cluster in self.clusters.items():
            if cluster.queue is not None:
                self.clusters[name] = replace(cluster, suspended=suspended)

    def set_group(self, name: str, group: Group) -> None:
        """Replace one worker group of a RayCluster."""
        cluster = self.clusters[name]
        groups = tuple(group if entry.pool == group.pool else entry for entry in cluster.groups)
        self.clusters[name] = replace(cluster, groups=groups)

    def group_pods(self, cluster: Cluster, pool: Pool) -> list[Pod]:
        """Pods of a group as they are now."""
        return [pod for pod in self.pods.values() if pod.cluster == cluster.name and pod.role == pool]

    # KubeRay

    def kuberay_watches(self) -> None:
        """KubeRay's view of RayClusters becomes the present."""
        self.kuberay_sees = dict(self.clusters)

    def kuberay(self) -> None:
        """One reconcile of every RayCluster that KubeRay sees."""
        for seen in list(self.kuberay_sees.values()):
            if seen.name in self.clusters and not seen.deleting:
                self._reconcile(seen)

    def _reconcile(self, cluster: Cluster) -> None:
        live = self.clusters[cluster.name]
        self.clusters[cluster.name] = replace(live, status_seen=True)
        if cluster.suspended:
            for pod in list(self.pods.values()):
                if pod.cluster_uid == cluster.uid:
                    self.delete_pod(pod.name)
            return
        heads = [pod for pod in self.pods.values() if pod.cluster == cluster.name and pod.role == "head"]
        # KubeRay ends the pass after a dead head, and makes the new one in the next.
        if any(dead(pod) for pod in heads):
            for pod in heads:
                self.delete_pod(pod.name)
            return
        if not heads:
            self._create_pod(cluster, "head")
        for group in cluster.groups:
            if not self._reconcile_group(cluster, group):
                return

    def _reconcile_group(self, cluster: Cluster, group: Group) -> bool:
        pods = self.group_pods(cluster, group.pool)
        unhealthy = [pod for pod in pods if dead(pod)]
        for pod in unhealthy:
            self.delete_pod(pod.name)
        if unhealthy:
            # The pass ends here: neither this group's size nor the groups behind it are looked at.
            return False
        for name in group.workers_to_delete:
            if name in self.pods:
                self._kill(self.pods[name], named=True)
        # Named pods do not count; others that terminate do, as long as they are there.
        counted = [pod for pod in pods if pod.name not in group.workers_to_delete]
        for _ in range(group.replicas - len(counted)):
            self._create_pod(cluster, group.pool)
        for _ in range(len(counted) - group.replicas):
            victim = self.choose(counted)
            counted.remove(victim)
            self._kill(victim, named=False)
        return True

    def _create_pod(self, cluster: Cluster, role: Role) -> None:
        self.serial += 1
        part = "head" if role == "head" else GROUPS[role]
        name = f"{cluster.name}-{part}-{self.serial}"
        self.pods[name] = Pod(
            name,
            f"uid-{self.serial}",
            role,
            cluster.attempt,
            cluster.name,
            cluster.uid,
            self.now,
            "Pending",
            False,
        )

    def _kill(self, pod: Pod, named: bool) -> None:
        if pod.deleting is None and not dead(pod):
            late = pod.name in self.late_names if named else pod.role in self.late_pools
            self.killed.append(Killed(pod.name, self.busy(pod), named, late))
        self.delete_pod(pod.name)

    def busy(self, pod: Pod) -> bool:
        """Whether the pod holds work that is lost with it."""
        return self.runtime is not None and (
            pod.name in self.runtime.in_use or pod.name in self.runtime.ranks
        )

    # The kubelet

    def start_pod(self, name: str) -> None:
        """Containers run and are ready; a head's driver starts."""
        pod = self.pods[name]
        if pod.phase != "Pending" or pod.deleting is not None:
            return
        self.pods[name] = replace(pod, phase="Running", ready=True, node=f"node-of-{name}")
        if pod.role == "head":
            self.runtime = Runtime(pod.attempt, step=self.checkpoint, checkpoint=self.checkpoint)

    def remove_pod(self, name: str) -> None:
        """A pod that was to go is gone."""
        pod = self.pods[name]
        if self.causal:
            self.kuberay_watches()
        del self.pods[name]
        if pod.role == "head":
            self._driver_gone(pod.attempt)

    def end_pod(self, name: str, reason: str, disrupted: str | None = None) -> None:
        """A worker's container ends: for its own reason, or the cluster's."""
        pod = self.pods[name]
        end = ContainerEnd(137, reason, "", self.now)  # 128 and SIGKILL
        self.pods[name] = replace(pod, phase="Failed", ready=False, main=end, disrupted=disrupted)

    def lose_node(self, name: str) -> None:
        """The pod's node does not answer: the pod is deleted, but stays until the node comes back."""
        pod = self.pods[name]
        self.pods[name] = replace(pod, ready=False, disrupted="DeletionByTaintManager")
        self.delete_pod(name)
        if pod.role == "head":
            self._driver_gone(pod.attempt)

    def end_driver(self, code: int, message: str = "") -> None:
        """The driver of the running attempt exits."""
        head = self.driving_head()
        if head is None or self.runtime is None:
            return
        end = ContainerEnd(code, "Completed" if code == 0 else "Error", message, self.now)
        self.pods[head.name] = replace(head, driver=end, ready=False)
        self._driver_gone(head.attempt)

    def complete(self) -> None:
        """The driver of the running attempt says that the job is done, after its last report."""
        runtime = self.runtime
        if runtime is None or self.job is None or self.driving_head() is None:
            return
        runtime.step = runtime.checkpoint = self.checkpoint = TOTAL_STEPS
        self._write_training(self._report(runtime), self.version)
        training = self.job.status.training
        assert training is not None
        status = self.job.status.model_copy(
            update={"training": training.model_copy(update={"completed": True})}
        )
        self._put_job(replace(self.job, status=status))

    def kill_head(self) -> None:
        """Ray's head uses up its memory; the driver ends with it."""
        head = self.driving_head()
        if head is not None:
            self.end_driver(1, "lost the connection to Ray")
            end = ContainerEnd(137, "OOMKilled", "", self.now)
            self.pods[head.name] = replace(self.pods[head.name], main=end)

    def driving_head(self) -> Pod | None:
        """The head pod in which the driver runs."""
        if self.runtime is None:
            return None
        attempt = self.runtime.attempt
        heads = (pod for pod in self.pods.values() if pod.role == "head" and pod.attempt == attempt)
        return next((pod for pod in heads if pod.phase == "Running" and pod.driver is None), None)

    def _driver_gone(self, attempt: int) -> None:
        if self.runtime is not None and self.runtime.attempt == attempt:
            self.runtime = None

    # The runtime

    def runtime_step(self) -> None:
        """The driver looks at its RLJob and at Ray's nodes, acts, and writes what changed."""
        runtime, job = self.runtime, self.job
        if runtime is None or job is None or job.spec is None:
            return
        version = self.version
        if job.spec.suspend:
            self._suspend(runtime)
        else:
            self._train(runtime, job)
            for pool in ("fastRollout", "heavyRollout"):
                self._serve(runtime, job, pool)
            self._rank(runtime, job)
        # Said with everything that was done for it, in one write.
        runtime.generation = job.generation
        self._write_training(self._report(runtime), version)

    def _suspend(self, runtime: Runtime) -> None:
        """The driver writes a checkpoint, ends all parts, and says at which step."""
        runtime.in_use, runtime.ranks = set(), frozenset()
        runtime.checkpoint = self.checkpoint = runtime.step
        runtime.suspended_at = runtime.step

    def _train(self, runtime: Runtime, job: Job) -> None:
        if runtime.ranks and runtime.in_use and runtime.step < TOTAL_STEPS:
            runtime.step += 1

    def _serve(self, runtime: Runtime, job: Job, pool: Pool) -> None:
        assert job.spec is not None
        nodes = self._nodes(runtime, pool)
        # Pods that are gone are forgotten.
        others = {name for name in runtime.in_use | set(runtime.released) if name not in self.pods}
        runtime.in_use -= others
        runtime.released = [name for name in runtime.released if name not in others]
        taken = {name for entry in job.status.scale_downs for name in entry.victims}
        want = wanted(job.spec, pool)
        # First what serves, then pods that are new: used up to the wish, released beyond it.
        serving = sorted(name for name in nodes if name in runtime.in_use)
        spare = sorted(name for name in nodes if name not in runtime.in_use and name not in runtime.released)
        for name in spare:
            if len(serving) < want and name not in taken:
                serving.append(name)
                runtime.in_use.add(name)
            else:
                runtime.released.append(name)
        # Too many serve: the last are released.
        for name in serving[want:]:
            runtime.in_use.discard(name)
            runtime.released.append(name)
        # Too few: released pods that nobody is removing yet are taken back.
        back = [name for name in runtime.released if name in nodes and name not in taken]
        for name in back[: max(want - len(serving), 0)]:
            runtime.released.remove(name)
            runtime.in_use.add(name)

    def _rank(self, runtime: Runtime, job: Job) -> None:
        assert job.spec is not None
        nodes = frozenset(self._nodes(runtime, "trainer"))
        want = wanted(job.spec, "trainer")
        # A lost rank, or another size: the trainer stops with a checkpoint.
        if runtime.ranks and (not runtime.ranks <= nodes or len(runtime.ranks) != want):
            runtime.checkpoint = self.checkpoint = runtime.step
            runtime.ranks = frozenset()
        settled = job.status.observed_generation == job.generation and not any(
            entry.pool == "trainer" for entry in job.status.scale_downs
        )
        if not runtime.ranks and len(nodes) == want and settled:
            runtime.ranks = nodes
        runtime.stopped_for = None if runtime.ranks else want

    def _nodes(self, runtime: Runtime, pool: Pool) -> list[str]:
        return [
            pod.name
            for pod in self.pods.values()
            if pod.role == pool
            and pod.attempt == runtime.attempt
            and pod.phase == "Running"
            and not dead(pod)
        ]

    def _report(self, runtime: Runtime) -> TrainingStatus:
        return TrainingStatus(
            attempt=runtime.attempt,
            observed_generation=runtime.generation,
            step=runtime.step,
            total_steps=TOTAL_STEPS,
            weight_version=runtime.step,
            checkpoint=CheckpointStatus(step=runtime.checkpoint, path="") if runtime.checkpoint else None,
            released=list(runtime.released),
            trainer_stopped_for=runtime.stopped_for,
            suspended_at_step=runtime.suspended_at,
        )
