"""A Kubernetes with KubeRay, a runtime and a kubelet, as far as an RLJob notices: in memory, one step at a
time.

Guarantees: nothing happens by itself; whoever drives it decides what happens next, which random choice is
taken, and how old the operator's view is. Objects change as the real ones do; the runtime is described at
`SimulatedRuntime`. KubeRay reconciles as `reconcilePods` of v1.4 to v1.7 with autoscaling off: it deletes
dead pods and ends the pass; it deletes every pod that workersToDelete names, whatever `replicas` says, and
leaves those out of its count, but counts other pods that still terminate; it creates what is missing and
deletes what is too much, and which pods those are is up to `choose`; it deletes all pods of a RayCluster that
is suspended. Its view of RayClusters may be old, but not older than a pod that is gone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from rljob_operator.plan.attempt import dead
from rljob_operator.plan.observed import GROUPS, Cluster, ContainerEnd, Group, Job, Pod, Role
from tests.support.operator.simulated_runtime import SimulatedRuntime


@dataclass
class Killed:
    """A worker that KubeRay deleted to make a group smaller, and that was not dead."""

    pod: str
    busy: bool
    named: bool
    """Whether workersToDelete named it: otherwise KubeRay chose it."""
    late: bool
    """Whether drainGraceSeconds were over when the group was patched."""


class SimulatedKuberay(SimulatedRuntime):
    """One namespace with one RLJob, its pods and its runtime."""

    def __init__(self, job: Job, now: datetime, choose: Callable[[Sequence[Pod]], Pod]) -> None:
        super().__init__(job, now)
        self.choose = choose
        self.killed: list[Killed] = []
        self.late_pools: set[str] = set()
        """Pools that were made smaller after drainGraceSeconds."""
        self.late_names: set[str] = set()
        """Pods that were named after drainGraceSeconds."""
        self.kuberay_sees: dict[str, Cluster] = {}
        self.causal = True
        """Whether KubeRay's view of RayClusters is never older than a pod that it sees gone."""

    # KubeRay

    def kuberay_watches(self) -> None:
        """KubeRay's view of RayClusters becomes the present."""
        self.kuberay_sees = dict(self.clusters)

    def kuberay(self) -> None:
        """One reconcile of every RayCluster that KubeRay sees."""
        for seen in list(self.kuberay_sees.values()):
            live = self.clusters.get(seen.name)
            # Not a RayCluster that was deleted, even where another one has its name by now.
            if live is not None and live.uid == seen.uid and not seen.deleting:
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

    # The kubelet

    def start_pod(self, name: str) -> None:
        """Containers run and are ready; a head's driver starts."""
        pod = self.pods[name]
        if pod.phase != "Pending" or pod.deleting is not None:
            return
        self.pods[name] = replace(pod, phase="Running", ready=True, node=f"node-of-{name}")
        if pod.role == "head":
            self.start_driver(pod.attempt)

    def remove_pod(self, name: str) -> None:
        """A pod that was to go is gone."""
        pod = self.pods[name]
        if self.causal:
            self.kuberay_watches()
        del self.pods[name]
        if pod.role == "head":
            self.driver_gone(pod.attempt)

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
            self.driver_gone(pod.attempt)
