"""The times at which a job is given up, or goes on without an answer.

Guarantees: every deadline is a fixed time that follows from the status and the spec alone; a job that is
suspended has none but that of the suspension itself.
"""

from datetime import datetime, timedelta

from rljob_api.job import Spec
from rljob_api.status import Status
from rljob_operator.plan.conditions import holds
from rljob_operator.plan.observed import Pod
from rljob_operator.plan.times import after, clock, moment

REMOVAL_SECONDS = 120.0
"""How long the next attempt waits for what is left of the one before: two drivers must not write to one run
folder, but a pod on a node that does not answer may stay for ever."""

LATE_DELETION = timedelta(seconds=30)
"""A pod that still exists so long after it was to be gone is on a node that does not answer."""


def active(status: Status, spec: Spec) -> datetime | None:
    """When the job has run for activeDeadlineSeconds, over all attempts since it last resumed; a queued one
    since it was last admitted."""
    seconds = spec.run_policy.active_deadline_seconds
    if seconds is None or status.start_time is None or spec.suspend:
        return None
    return after(status.start_time, seconds)


def start(status: Status, spec: Spec) -> datetime | None:
    """When the pods that training needs must be ready; None while the attempt waits in a queue, and once it
    runs."""
    if status.cluster_name is None or status.attempt_time is None or spec.suspend or holds(status, "Running"):
        return None
    return after(status.attempt_time, spec.run_policy.start_deadline_seconds)


def start_text(status: Status, spec: Spec) -> str | None:
    """The start deadline for people."""
    deadline = start(status, spec)
    if deadline is None or status.attempt_time is None:
        return None
    return clock(deadline, moment(status.attempt_time))


def suspend(status: Status, spec: Spec) -> datetime | None:
    """When a suspended job's pods go without the runtime's answer."""
    if status.suspend_time is None:
        return None
    return after(status.suspend_time, spec.run_policy.suspend_grace_seconds)


def removal(status: Status, head: Pod | None) -> datetime | None:
    """When the next attempt begins although an earlier one's `head` still exists, or its RayCluster where
    that is None: counted from the deletion or, where that is not known, from the end of the attempt."""
    if head is not None and head.deleting is not None:
        # `deleting` is deletion_grace after the deletion was asked for.
        return head.deleting + timedelta(seconds=REMOVAL_SECONDS - head.deletion_grace)
    return None if status.attempt_time is None else after(status.attempt_time, REMOVAL_SECONDS)
