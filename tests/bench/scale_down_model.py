"""Busy workers that a scale-down costs, over random scale-downs in the model of KubeRay.

Each scale-down starts from a running job of random size, asks for fewer workers of one or two pools, and
has a random history (see tests/support/operator/simulated_resizes.py) until the pools have the size that was
asked for last.
A wrong victim is a worker that KubeRay chose; no scale-down here takes as long as drainGraceSeconds.

Beside it, the same histories with scale-downs done in two simpler ways: only lowering `replicas`, and
lowering `replicas` and naming the victims, but neither waiting for their release nor looking at the pods
before the patch.

The model's KubeRay never sees a pod's end before an older change of its RayCluster. Real watches do not
promise that: the last figure is from histories without the promise, where the window between the operator's
look at the pods and KubeRay's look at the patch is as long as it likes.

    python -m tests.bench.scale_down_model
"""

from collections import Counter
from collections.abc import Callable

from rljob_operator.plan.observed import Cluster, Group, Pod
from tests.bench.figures import Figure, parser, record
from tests.support.operator.simulated_resizes import MOVES, Resizing, with_the_operator

SCALE_DOWNS = 10_000


def simply(seed: int, named: bool) -> Resizing:
    """A scale-down by one patch, `named` with victims as an old view of the pods shows them."""
    run = Resizing(seed)
    seen = list(run.world.pods.values())
    run.ask()

    def patch() -> None:
        for cluster in run.world.clusters.values():
            for group in cluster.groups:
                size = run.sizes[group.pool]
                if group.replicas < size or (group.replicas > size and not named):
                    run.world.set_group(cluster.name, Group(group.pool, size, group.workers_to_delete))
                elif group.replicas > size:
                    run.world.set_group(cluster.name, _lowered(cluster, group, size, seen))

    for _ in range(MOVES):
        run.move(patch)
        if run.rng.random() < 0.2:
            seen = list(run.world.pods.values())
    for _ in range(20):
        run.everybody(patch)
    return run


def _lowered(cluster: Cluster, group: Group, size: int, seen: list[Pod]) -> Group:
    pods = [pod.name for pod in seen if pod.role == group.pool and pod.cluster == cluster.name]
    left = [name for name in pods if name not in group.workers_to_delete]
    return Group(group.pool, size, (*group.workers_to_delete, *left[size - group.replicas :]))


def losses(runs: Callable[[int], Resizing]) -> Counter[str]:
    """What the scale-downs cost in all."""
    counts: Counter[str] = Counter()
    for seed in range(SCALE_DOWNS):
        run = runs(seed)
        counts["removed"] += len(run.world.killed)
        counts["busy"] += sum(killed.busy for killed in run.world.killed)
        counts["wrong"] += sum(not killed.named for killed in run.world.killed)
        counts["refused"] += len(run.operator.refusals)
        counts["late"] += sum(killed.late for killed in run.world.killed)
    return counts


def main() -> None:
    """Measure and record."""
    out = parser(__doc__).parse_args().out
    ours = losses(with_the_operator)
    lowered = losses(lambda seed: simply(seed, named=False))
    named = losses(lambda seed: simply(seed, named=True))
    unordered = losses(lambda seed: with_the_operator(seed, causal=False))
    zero = "0"
    record(
        "scale_down_model",
        [
            Figure("scale-downs", SCALE_DOWNS, "scale-downs"),
            Figure("workers removed", ours["removed"], "workers"),
            Figure("removed after drainGraceSeconds", ours["late"], "workers", goal=zero),
            Figure("busy workers killed", ours["busy"], "workers", lowered["busy"], goal=zero),
            Figure("wrong victims", ours["wrong"], "workers", lowered["wrong"], goal=zero),
            Figure("patches refused, as pods had changed", ours["refused"], "patches"),
            Figure("busy workers killed, victims named but not drained", named["busy"], "workers"),
            Figure("wrong victims, named without a fresh look", named["wrong"], "workers"),
            Figure("wrong victims, KubeRay's watches out of order", unordered["wrong"], "workers"),
            Figure("busy workers killed, KubeRay's watches out of order", unordered["busy"], "workers"),
        ],
        out,
    )


if __name__ == "__main__":
    main()
