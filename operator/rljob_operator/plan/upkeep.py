"""Which objects of a running attempt are missing and to be created, and what is noted on its RayCluster.

Guarantees: what the API server refused is tried again from time to time, since nothing tells when it would be
accepted; while no object is missing, nothing is written.
"""

from datetime import datetime, timedelta

from rljob_operator.plan import waiting
from rljob_operator.plan.attempt import Attempt
from rljob_operator.plan.observed import Observed
from rljob_operator.plan.plan import Action, CreateCluster, EnsureAccess, NoteHead, RestoreAccess

CREATE_AGAIN_SECONDS = 10.0
"""Until a RayCluster that was asked for and is not seen is asked for once more: the answer may have been
lost, and one that is there by now is left as it is."""


def missing(
    observed: Observed, attempt: Attempt, now: datetime
) -> tuple[tuple[Action, ...], datetime | None]:
    """What is to be made of an attempt that is to run, and when time alone changes that."""
    making = _making(observed, attempt)
    if not making:
        return (), None
    restores = making == (RestoreAccess(),)
    creation_failure = (
        waiting.access_failure(observed, attempt.name)
        if restores
        else waiting.creation_failure(observed, attempt.name)
    )
    if creation_failure is not None and now < creation_failure.again:
        return (), creation_failure.again
    return making, now + timedelta(seconds=CREATE_AGAIN_SECONDS) if attempt.cluster is None else None


def noted(attempt: Attempt) -> tuple[Action, ...]:
    """The note of the attempt's head on its RayCluster: once, for whoever leads next."""
    cluster, head = attempt.cluster, attempt.head
    if cluster is None or cluster.deleting or cluster.head is not None or head is None:
        return ()
    return (NoteHead(cluster.name, cluster.uid, head.uid),)


def _making(observed: Observed, attempt: Attempt) -> tuple[Action, ...]:
    if attempt.cluster is None and attempt.pods == 0:
        if waiting.uncreatable(observed, attempt.name) is not None:
            return ()
        return EnsureAccess(), CreateCluster(attempt.name, attempt.number)
    # Before there is a head, the objects were made a moment ago, or the job waits in a queue.
    due = observed.access_due and attempt.head is not None and observed.job.invalid is None
    return (RestoreAccess(),) if due else ()
