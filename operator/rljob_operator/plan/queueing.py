"""A job whose RayCluster is suspended: by Kueue, while it waits for admission, or by somebody else.

Guarantees: a queued attempt's RayCluster is created suspended, and only Kueue changes that. The start
deadline and the active deadline count from the attempt's admission, as it was first seen. A RayCluster that
Kueue suspends again before it has pods waits as if it were new; one that has a head loses it: the attempt
ends. A RayCluster without a queue that somebody suspends has no start deadline meanwhile, and it is told: a
Kueue that manages jobs without a queue does so. Its active deadline counts on.
"""

from datetime import datetime

from rljob_api.status import Status
from rljob_operator.plan.attempt import Attempt
from rljob_operator.plan.conditions import Row
from rljob_operator.plan.observed import Cluster
from rljob_operator.plan.times import stamp


def holding(cluster: Cluster | None) -> str | None:
    """Name of the queue that holds the RayCluster back; None where none does."""
    return cluster.queue if cluster is not None and cluster.suspended else None


def suspended(cluster: Cluster | None) -> bool:
    """Whether the RayCluster has no pods on purpose, or loses them: KubeRay makes none."""
    return cluster is not None and cluster.suspended


def clocked(status: Status, attempt: Attempt, now: datetime) -> Status:
    """The status of an attempt that goes on: its times begin with its admission."""
    if attempt.cluster is None:
        return status
    if attempt.cluster.suspended:
        queued = holding(attempt.cluster) is not None
        waits = {"attempt_time": None, **({"start_time": None} if queued else {})}
        # With pods it is being evicted: its clocks go on until the attempt has ended.
        return status if attempt.pods else status.model_copy(update=waits)
    if status.attempt_time is not None:
        return status
    # The first attempt of the job starts both clocks; a later one only its own.
    begun = {"attempt_time": stamp(now), "start_time": status.start_time or stamp(now)}
    return status.model_copy(update=begun)


def starting(status: Status, cluster: Cluster | None = None) -> Row:
    """Running of an attempt that does not run yet; `cluster`: its RayCluster, where there is one."""
    if status.attempt_time is None and (cluster is None or cluster.queue is not None):
        return Row("Running", "False", "Queued", f"Attempt {status.attempt} waits for admission.")
    return Row("Running", "False", "Starting", f"Attempt {status.attempt} starts.")


def pods_ready(attempt: Attempt, job: str) -> Row | None:
    """PodsReady while the attempt's RayCluster is suspended, by its queue or by somebody else; else
    None. `job`: name of the RLJob."""
    if not suspended(attempt.cluster):
        return None
    queue = holding(attempt.cluster)
    if queue is None:
        text = (
            f"RayCluster {attempt.name} is suspended by somebody else (spec.suspend of RayCluster "
            f"{attempt.name}): set it to false; where Kueue does it, give RLJob {job} the label "
            "kueue.x-k8s.io/queue-name, then suspend and resume the RLJob."
        )
        return Row("PodsReady", "False", "RayClusterSuspended", text)
    if attempt.pods:
        text = f"Kueue has evicted RayCluster {attempt.name}: waiting for its pods to end."
        return Row("PodsReady", "False", "Evicted", text)
    text = f"Waiting for Kueue to admit RayCluster {attempt.name} to queue {queue}."
    return Row("PodsReady", "False", "WaitingForAdmission", text)
