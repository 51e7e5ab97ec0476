"""When a finished RLJob is deleted.

Guarantees: only ttlSecondsAfterFinished deletes an RLJob, counted from its completion.
"""

from datetime import datetime

from rljob_api.job import Spec
from rljob_api.status import Status
from rljob_operator.plan.times import after


def expiry(status: Status, spec: Spec) -> datetime | None:
    """When the job is to be deleted; None: never, or it has not finished."""
    seconds = spec.run_policy.ttl_seconds_after_finished
    if seconds is None or status.completion_time is None:
        return None
    return after(status.completion_time, seconds)
