"""The RayCluster of an attempt: head and three worker groups.

Guarantees: groups are always the same three in the same order (they are patched by index); no bound of a
group is in the way of a number of replicas that an RLJob may ask for.
"""

from typing import Any

from rljob_api import Spec
from rljob_api.pools import MOST_WORKERS
from rljob_api.pools import Pool as PoolSpec
from rljob_operator.plan.observed import GROUPS, Pool, Queue, Record
from rljob_operator.render.accelerators import ray_devices
from rljob_operator.render.kuberay import KubeRay
from rljob_operator.render.labels import cluster_labels, owner_references, queue_labels, record_annotations
from rljob_operator.render.names import JobKey
from rljob_operator.render.pods import head_template, worker_template
from rljob_operator.render.resources import ray_start

ANNOTATIONS = {"ray.io/disable-provisioned-head-restart": "true"}
"""A lost head is a new attempt, with a cluster of its own. Releases that do not know the annotation make a
new head, which its UID tells."""


def ray_cluster(
    key: JobKey,
    spec: Spec,
    attempt: int,
    kuberay: KubeRay,
    queue: Queue | None = None,
    record: Record | None = None,
) -> dict[str, Any]:
    """The RayCluster as it is created; later only replicas and workersToDelete of its groups change. One with
    a `queue` is created suspended, and `suspend` is Kueue's from then on. `record`: what is noted of the job
    for whoever leads next; None: nothing."""
    pools = spec.pools
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": key.cluster(attempt),
            "namespace": key.namespace,
            "labels": {**cluster_labels(key, attempt), **(queue_labels(queue) if queue else {})},
            "annotations": {**ANNOTATIONS, **(record_annotations(record) if record else {})},
            "ownerReferences": owner_references(key),
        },
        "spec": {
            **({"suspend": True} if queue else {}),
            "rayVersion": spec.ray_version,
            # Ray's autoscaler would change replicas, which are the operator's.
            "enableInTreeAutoscaling": False,
            "headGroupSpec": {
                # The head runs no actor that asks for devices. Its dashboard takes jobs from whoever reaches
                # it: `kubectl port-forward` does.
                **ray_start(kuberay, {"GPU": 0}, {"dashboard-host": "127.0.0.1"}),
                "template": head_template(key, spec, attempt),
            },
            "workerGroupSpecs": [
                _group(key, spec, attempt, kuberay, "trainer", pools.trainer),
                _group(key, spec, attempt, kuberay, "fastRollout", pools.fast_rollout),
                _group(key, spec, attempt, kuberay, "heavyRollout", pools.heavy_rollout),
            ],
        },
    }


def _group(
    key: JobKey, spec: Spec, attempt: int, kuberay: KubeRay, name: Pool, pool: PoolSpec
) -> dict[str, Any]:
    units = {**ray_devices(spec, pool.accelerators_per_worker), _UNIT[name]: _units(name, pool)}
    return {
        "groupName": GROUPS[name],
        "replicas": pool.replicas,
        # KubeRay would raise or cut replicas to its own bounds; the API server enforces the RLJob's.
        "minReplicas": 0,
        # KubeRay reads more replicas as that many.
        "maxReplicas": MOST_WORKERS,
        # More would make KubeRay treat several pods as one replica.
        "numOfHosts": 1,
        **ray_start(kuberay, units),
        "template": worker_template(key, spec, attempt, name, pool),
    }


_UNIT: dict[Pool, str] = {
    "trainer": "trainer",
    "fastRollout": "fast_rollout",
    "heavyRollout": "heavy_rollout",
}
"""Ray resource by which the runtime places its actors in a pool."""


def _units(name: Pool, pool: PoolSpec) -> int:
    """Actors of a worker: a rank for each accelerator (one on CPUs), or one engine."""
    return pool.accelerators_per_worker if name == "trainer" else 1
