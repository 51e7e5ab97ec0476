"""How a job is suspended: the runtime writes a checkpoint, then all pods go.

Guarantees: pods go when the runtime says that its checkpoint is written, or when there is no driver to say
so (neither a head pod that is seen to run, nor a report of the last minute), or after suspendGraceSeconds;
Suspended is True only when nothing of the job is left. For a job that is created suspended nothing is made.
"""

from datetime import datetime

from rljob_api.job import Spec
from rljob_api.status import Status
from rljob_operator.plan import deadlines
from rljob_operator.plan.attempt import Attempt, own_clusters, own_pods
from rljob_operator.plan.conditions import Row, condition, put, reason
from rljob_operator.plan.observed import POOLS, Observed
from rljob_operator.plan.pools import accelerators, wanted
from rljob_operator.plan.step import Step
from rljob_operator.plan.times import clock, moment, stamp

UNDER_WAY = ("Suspending", "SuspendTimedOut")
"""Reasons of Suspended while it is False and the job is to be suspended."""
_PODS_END = "Waiting for the pods to end."


def noted(status: Status, spec: Spec, now: datetime) -> Status:
    """The status with the time of the newest request to suspend, and without that of one withdrawn."""
    if not spec.suspend:
        return status.model_copy(update={"suspend_time": None})
    if status.suspend_time is not None:
        return status
    return status.model_copy(update={"suspend_time": stamp(now)})


def withdrawn(status: Status) -> tuple[Row, ...]:
    """Suspended of a job whose suspension was taken back; empty where none was ever asked for."""
    if condition(status, "Suspended") is None:
        return ()
    return (Row("Suspended", "False", "Resumed", "The job goes on."),)


def may_release(status: Status, spec: Spec, attempt: Attempt, now: datetime) -> str | None:
    """Whether the pods may go: the reason that Suspended then has, None: not yet."""
    training = status.training
    answered = (
        training is not None and training.attempt == attempt.number and training.suspended_at_step is not None
    )
    # Without a driver nobody can write a checkpoint: waiting for one would only hold the pods.
    if answered or not attempt.driver_runs(now):
        return "Suspending"
    grace = deadlines.suspend(status, spec)
    return "SuspendTimedOut" if grace is not None and now >= grace else None


def waits(status: Status, spec: Spec) -> Row:
    """Suspended while the runtime has not answered."""
    grace = deadlines.suspend(status, spec)
    text = "Waiting for the runtime to write a checkpoint."
    if grace is not None and status.suspend_time is not None:
        text = (
            text.removesuffix(".")
            + f"; pods go at {clock(grace, moment(status.suspend_time))} at the latest."
        )
    return Row("Suspended", "False", "Suspending", text)


def released(status: Status, why: str, generation: int, now: datetime) -> Status:
    """The status of a job whose attempt is to go."""
    ended = status.model_copy(
        update={
            "cluster_name": None,
            "head_pod": None,
            "scale_downs": [],
            "attempt_time": stamp(now),
        }
    )
    text = (
        "The runtime did not answer within suspendGraceSeconds; waiting for the pods to end."
        if why == "SuspendTimedOut"
        else _PODS_END
    )
    return put(ended, (Row("Suspended", "False", why, text),), generation, now)


def between_attempts(observed: Observed, spec: Spec, status: Status, now: datetime) -> Step:
    """A suspended job without an attempt: Suspended as soon as nothing is left."""
    generation = observed.job.generation
    left = own_clusters(observed) or own_pods(observed)
    old = condition(status, "Suspended")
    if left and old is not None and old.status == "False" and old.reason in UNDER_WAY:
        row = Row("Suspended", "False", old.reason, old.message)
    elif left:
        row = Row("Suspended", "False", "Suspending", _PODS_END)
    # As it was said when the last pod had gone: the spec may ask for other sizes by now.
    elif old is not None and old.status == "True":
        row = Row("Suspended", "True", old.reason, old.message)
    else:
        row = Row("Suspended", "True", "Suspended", _summary(spec, status))
    text = "The job is suspended."
    rows = [row, Row("PodsReady", "False", "Suspended", text), Row("Running", "False", "Suspended", text)]
    if condition(status, "Degraded") is not None:
        rows.append(Row("Degraded", "False", "Suspended", text))
    # activeDeadlineSeconds counts anew from the resumption.
    stopped = status.model_copy(update={"start_time": None})
    return Step(put(stopped, tuple(rows), generation, now))


def _summary(spec: Spec, status: Status) -> str:
    """What was kept and what was released, said when the last pod is gone."""
    if status.attempt == 0:
        return "Created suspended: nothing was started."
    kept = _kept(spec, status)
    if reason(status, "Suspended") == "SuspendTimedOut":
        kept = f"The runtime did not answer in time. {kept}"
    devices = sum(wanted(spec, pool) * accelerators(spec, pool) for pool in POOLS)
    return f"{kept}; {f'{devices} accelerators' if devices else 'all pods'} released."


def _kept(spec: Spec, status: Status) -> str:
    """What the job goes on from when it is resumed."""
    training = status.training
    if training is not None and training.attempt == status.attempt and training.suspended_at_step:
        kept = f"Checkpoint of step {training.suspended_at_step} written"
        return kept if spec.storage.volume else f"{kept}, but gone with the pods (no storage.volume)"
    if not spec.storage.volume:
        return "No checkpoint; the job begins anew"
    if training is not None and training.checkpoint is not None:
        return f"No new checkpoint; the job goes on from that of step {training.checkpoint.step}"
    return "No new checkpoint; the job goes on from the volume's newest one, or anew without one"
