"""Which of a running attempt's objects are to be made, again or for the first time.

Guarantees: what the API server refused is tried again from time to time, as nothing tells that it would be
accepted; while all is there, nothing is written.
"""

from datetime import datetime, timedelta

from rljob_operator.plan import waiting
from rljob_operator.plan.attempt import Attempt
from rljob_operator.plan.observed import Observed
from rljob_operator.plan.plan import Action, CreateCluster, EnsureAccess, RestoreAccess

CREATE_AGAIN_SECONDS = 10.0
"""Until a RayCluster that was asked for and is not seen is asked for once more."""


def missing(
    observed: Observed, attempt: Attempt, now: datetime
) -> tuple[tuple[Action, ...], datetime | None]:
    """What is to be made of an attempt that is to run, and when time alone changes that."""
    making = _making(observed, attempt)
    if not making:
        return (), None
    hindrance = waiting.hindrance(observed, attempt.name)
    if hindrance is not None and now < hindrance.again:
        return (), hindrance.again
    return making, now + timedelta(seconds=CREATE_AGAIN_SECONDS) if attempt.cluster is None else None


def _making(observed: Observed, attempt: Attempt) -> tuple[Action, ...]:
    if attempt.cluster is None and attempt.pods == 0:
        if waiting.uncreatable(observed, attempt.name) is not None:
            return ()
        return EnsureAccess(), CreateCluster(attempt.name, attempt.number)
    # Before there is a head, the objects were made a moment ago, or the job waits in a queue.
    due = observed.access_due and attempt.head is not None and observed.job.invalid is None
    return (RestoreAccess(),) if due else ()
