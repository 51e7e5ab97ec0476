"""Random histories of one job that is made smaller, in the model of KubeRay.

Guarantees: a seed stands for one history. In it, everybody moves in random order - the operator, with views
of random age and now and then cut short; KubeRay, with an old view of the RayCluster; the runtime; the
kubelet; users who change their minds; workers that die, are deleted, lose their node, or are gone and
replaced at once, released ones above all - until everybody comes to rest. KubeRay's arbitrary victims are
busy workers wherever there are any.
"""

import random
from collections.abc import Callable, Sequence
from datetime import timedelta

from rljob_operator.plan.observed import POOLS, Pod
from tests.support.operator.observations import NOW, new_job, spec
from tests.support.operator.simulated_kuberay import SimulatedKuberay
from tests.support.operator.simulated_operator import SimulatedOperator

MOVES = 40
WHO = (
    *("operator", "operator", "view", "kuberay", "watch", "runtime", "runtime"),
    *("kubelet", "kubelet", "kubelet", "fault", "user"),
)
"""Who may do something next; a fault, and a user who changes the wish, come one in four times."""


class Resizing:
    """One history."""

    def __init__(self, seed: int, causal: bool = True) -> None:
        """`causal`: see `SimulatedKuberay.causal`."""
        self.rng = random.Random(seed)
        sizes = (self.rng.randint(1, 3), self.rng.randint(2, 8), self.rng.randint(0, 4))
        self.most = dict(zip(POOLS, sizes, strict=True))
        """Workers of each pool at first."""
        self.sizes = dict(self.most)
        """Workers of each pool that the user asks for."""
        self.world = SimulatedKuberay(new_job(spec(pools=sizes)), NOW, self.worst)
        self.world.causal = causal
        self.operator = SimulatedOperator(self.world)
        # Until the job runs: that is where the history begins.
        for _ in range(5):
            self.everybody(self.look_and_act)
        self.world.killed.clear()

    def worst(self, pods: Sequence[Pod]) -> Pod:
        """The pod that KubeRay's choice costs most."""
        return next((pod for pod in pods if self.world.busy(pod)), pods[0])

    def look_and_act(self) -> None:
        """One whole turn of the operator, with a view of the present."""
        self.operator.see()
        self.operator.reconcile()

    def everybody(self, act: Callable[[], None]) -> None:
        """Everyone does what there is to do, with nothing in the way."""
        for pod in list(self.world.pods.values()):
            if pod.deleting is not None:
                self.world.remove_pod(pod.name)
        act()
        self.world.kuberay_watches()
        self.world.kuberay()
        for name in list(self.world.pods):
            self.world.start_pod(name)
        self.world.runtime_step()
        self.world.now += timedelta(seconds=1)

    def ask(self) -> None:
        """Another number of workers for one pool or two: fewer than there were at first."""
        before = dict(self.sizes)
        for pool in self.rng.sample(POOLS, self.rng.randint(1, 2)):
            fewest = 0 if pool == "heavyRollout" else 1
            self.sizes[pool] = self.rng.randint(fewest, max(self.most[pool] - 1, fewest))
        if self.sizes == before:
            self.sizes["fastRollout"] = self.rng.randint(1, self.most["fastRollout"] - 1)
        self.world.edit(
            spec(pools=(self.sizes["trainer"], self.sizes["fastRollout"], self.sizes["heavyRollout"]))
        )

    def move(self, act: Callable[[], None]) -> None:
        """Somebody does something."""
        world, pods = self.world, list(self.world.pods.values())
        match self.rng.choice(WHO):
            case "operator":
                act()
            case "view":
                getattr(self.operator, self.rng.choice(["see_job", "see_pods", "see_clusters"]))()
            case "kuberay":
                world.kuberay()
            case "watch":
                world.kuberay_watches()
            case "runtime":
                world.runtime_step()
            case "kubelet":
                pod = self.rng.choice(pods)
                if pod.deleting is not None:
                    world.remove_pod(pod.name)
                else:
                    world.start_pod(pod.name)
            case "fault" if self.rng.random() < 0.25:
                self.fault(pods)
            case "user" if self.rng.random() < 0.25:
                self.ask()
        world.now += timedelta(seconds=1)

    def fault(self, pods: list[Pod]) -> None:
        """A worker is lost by itself: it may take its time, or be gone and replaced at once."""
        workers = [pod.name for pod in pods if pod.role != "head" and pod.phase == "Running"]
        released = [] if self.world.runtime is None else self.world.runtime.released
        preferred = [name for name in workers if name in released]
        if not workers:
            return
        name = self.rng.choice(preferred if preferred and self.rng.random() < 0.7 else workers)
        how = self.rng.choice(["memory", "node", "deleted", "gone", "replaced", "replaced"])
        if how == "memory":
            self.world.end_pod(name, "OOMKilled")
        elif how == "node":
            self.world.lose_node(name)
        else:
            self.world.delete_pod(name)
        if how in ("gone", "replaced"):
            self.world.remove_pod(name)
        if how == "replaced":
            self.world.kuberay()

    def reconcile(self) -> None:
        """One turn of the operator; one in five is cut short."""
        # Cut short before the status, after it, or after one action; half of the times by a crash.
        cut = self.rng.random() < 0.2
        self.operator.reconcile(self.rng.randint(0, 2) if cut else None)
        if cut and self.rng.random() < 0.5:
            self.operator.restart()


def with_the_operator(seed: int, causal: bool = True) -> Resizing:
    """A history in which the operator carries out what is wished, to its end."""
    run = Resizing(seed, causal)
    run.ask()
    for _ in range(MOVES):
        run.move(run.reconcile)
    # In the end everybody does what there is to do, until nothing is left.
    for _ in range(20):
        run.everybody(run.look_and_act)
    (cluster,) = run.world.clusters.values()
    now = {group.pool: (group.replicas, group.workers_to_delete) for group in cluster.groups}
    wish = {pool: (size, ()) for pool, size in run.sizes.items()}
    assert now == wish, f"seed {seed}: {now}, not {wish}"
    return run
