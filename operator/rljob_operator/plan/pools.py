"""How many workers each pool has: asked for, existing, ready.

Guarantees: counts come from pods, never from KubeRay's totals; a pod that is dead or being deleted is not
counted.
"""

from rljob_api.job import Spec
from rljob_api.pools import Pool as PoolSpec
from rljob_api.status import PoolStatus, Status
from rljob_operator.plan.attempt import alive, attempt_of, own_pods
from rljob_operator.plan.observed import POOLS, Observed, Pod, Pool


def wanted(spec: Spec, pool: Pool) -> int:
    """Workers that the spec asks for."""
    return _pool(spec, pool).replicas


def accelerators(spec: Spec, pool: Pool) -> int:
    """Accelerators that one worker of the pool holds."""
    return 0 if spec.accelerator == "cpu" else _pool(spec, pool).accelerators_per_worker


def _pool(spec: Spec, pool: Pool) -> PoolSpec:
    pools: dict[Pool, PoolSpec] = {
        "trainer": spec.pools.trainer,
        "fastRollout": spec.pools.fast_rollout,
        "heavyRollout": spec.pools.heavy_rollout,
    }
    return pools[pool]


def counted(pods: tuple[Pod, ...], pool: Pool, desired: int) -> PoolStatus:
    """The counts of one pool."""
    living = [pod for pod in pods if pod.role == pool and alive(pod)]
    ready = sum(pod.ready for pod in living)
    return PoolStatus(
        name=pool, desired=desired, current=len(living), ready=ready, summary=f"{ready}/{desired}"
    )


def count(observed: Observed, spec: Spec) -> Status:
    """The observed status with its counts brought up to date: those of the running attempt's pods or, between
    two attempts, of whatever pods are left."""
    job, attempt = observed.job, attempt_of(observed)
    # Between two attempts the counts go down to 0 as the pods of the last one end.
    pods = (
        own_pods(observed) if attempt is None else tuple(p for pool in attempt.workers.values() for p in pool)
    )
    counts = [counted(pods, pool, wanted(spec, pool)) for pool in POOLS]
    return job.status.model_copy(
        update={
            "observed_generation": job.generation,
            "pools": counts,
            # What `kubectl scale` and autoscalers read, through the scale subresource.
            "fast_rollout_replicas": counts[POOLS.index("fastRollout")].current,
            "fast_rollout_selector": f"rljob.dev/job={job.name},rljob.dev/pool=fastRollout",
        }
    )


def pool_status(status: Status, pool: Pool) -> PoolStatus:
    """The counts on record; zeros where there are none."""
    return next((entry for entry in status.pools if entry.name == pool), PoolStatus(name=pool))
