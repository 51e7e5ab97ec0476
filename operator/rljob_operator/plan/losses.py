"""Which workers a running attempt has lost, and which only leave because their pool is made smaller.

Guarantees: a pod that was listed for a scale-down is never lost, whatever the pool's size is by then; nor is
one of which only a container beside Ray's has ended.
"""

from rljob_api.status import Status
from rljob_operator.plan.attempt import alive, attempt_of
from rljob_operator.plan.observed import Observed, Pod, Pool
from rljob_operator.plan.pools import pool_status


def unreplaced(observed: Observed, new: Status, pool: Pool) -> int:
    """By how many workers a pool is smaller than the status has it, without those that go on purpose. This
    finds losses that nobody saw, such as those while the operator was away."""
    before, after = pool_status(observed.job.status, pool), pool_status(new, pool)
    return min(before.current, after.desired) - after.current - leaving(observed, new, pool)


def leaving(observed: Observed, new: Status, pool: Pool) -> int:
    """How many of the pods that a scale-down names have ended or are being deleted: they are not counted any
    more, and are no loss."""
    attempt = attempt_of(observed)
    # A victim that still runs is counted in the pool, and would be subtracted twice.
    living = {pod.name for pod in attempt.workers[pool] if alive(pod)} if attempt is not None else set()
    return len(_victims(observed, new, pool) - living)


def unready_for_a_sidecar(observed: Observed, pool: Pool) -> int:
    """How many of the pool's workers are not ready since a container beside Ray's has ended: none of them
    ever is again, and Ray works on in them."""
    attempt = attempt_of(observed)
    pods = attempt.workers[pool] if attempt is not None else ()
    return sum(
        alive(pod) and pod.phase == "Running" and not pod.ready and pod.helper is not None for pod in pods
    )


def seen(observed: Observed, new: Status, pool: Pool) -> list[Pod]:
    """The pool's workers that were seen to be lost since the status was written last, by name."""
    attempt = attempt_of(observed)
    if attempt is None:
        return []
    gone = _victims(observed, new, pool)
    return sorted(
        (
            pod
            for pod in observed.lost_workers
            if pod.role == pool
            and pod.name not in gone
            and pod.cluster == attempt.name
            and pod.attempt == attempt.number
            and (attempt.cluster is None or pod.cluster_uid == attempt.cluster.uid)
        ),
        key=lambda pod: pod.name,
    )


def ended(observed: Observed, new: Status, pool: Pool) -> list[Pod]:
    """The pool's workers that still exist and have ended, or are being deleted, by name, whether an
    event has told of them before or not."""
    attempt = attempt_of(observed)
    gone = _victims(observed, new, pool)
    pods = attempt.workers[pool] if attempt is not None else ()
    return sorted((pod for pod in pods if not alive(pod) and pod.name not in gone), key=lambda pod: pod.name)


def _victims(observed: Observed, new: Status, pool: Pool) -> set[str]:
    """Names of the pool's pods that go because it is made smaller."""
    entries = (*observed.job.status.scale_downs, *new.scale_downs)
    # The status names a pod before the RayCluster does; pods that are stuck are named in that alone.
    groups = (group for cluster in observed.clusters for group in cluster.groups)
    names = [entry.victims for entry in entries if entry.pool == pool]
    return {name for group in groups if group.pool == pool for name in group.workers_to_delete}.union(*names)
