"""Whether an attempt has what training needs, and whether it runs.

Guarantees: an attempt whose driver has told that it trains runs, whichever of its pods is not ready: a pod
is never ready again once one of its containers has ended. Until it has told so, the attempt needs what the
driver itself waits for, the head, every worker of the trainer and one rollout worker: other rollout pods that
find no room keep no job from running.
"""

from datetime import datetime

from rljob_api.job import Spec
from rljob_api.status import Status
from rljob_operator.plan import deadlines, queueing
from rljob_operator.plan.attempt import Attempt, alive
from rljob_operator.plan.observed import Pool
from rljob_operator.plan.pools import wanted

_ROLLOUT: tuple[Pool, ...] = ("fastRollout", "heavyRollout")


def enough(attempt: Attempt, spec: Spec) -> bool:
    """Whether the pods that training needs are ready."""
    head = attempt.head
    if head is None or not head.ready or head.deleting is not None:
        return False
    if _ready(attempt, "trainer") < wanted(spec, "trainer"):
        return False
    return any(_ready(attempt, pool) > 0 for pool in _ROLLOUT)


def runs_without_all(attempt: Attempt, spec: Spec, status: Status, now: datetime) -> bool:
    """Whether the attempt counts as running although pods are missing: it trains, or it has what it needs and
    has waited for the others until its start deadline."""
    if queueing.suspended(attempt.cluster):
        return False
    deadline = deadlines.start(status, spec)
    return trains(attempt, status) or (deadline is not None and now >= deadline and enough(attempt, spec))


def _ready(attempt: Attempt, pool: Pool) -> int:
    return sum(pod.ready and alive(pod) for pod in attempt.workers[pool])


def trains(attempt: Attempt, status: Status) -> bool:
    """Whether the attempt's driver has told that it trains."""
    training = status.training
    # Neither is told before training has begun.
    return (
        attempt.reported is not None
        and training is not None
        and (training.reward is not None or training.load is not None)
    )
