"""The condition Accepted: whether the spec can be carried out, and whether the operator can tell. Pure.

Guarantees: a decision that fails is told in the same words each time, so that it is written and told by an
Event once; it changes nothing else of the status; and once decisions succeed, it is taken back, of a job that
has ended too.
"""

from datetime import datetime

from rljob_api.status import Status
from rljob_api.stored import name_fields
from rljob_operator.plan.conditions import Row, condition, phase, put, reason
from rljob_operator.plan.observed import Job
from rljob_operator.plan.plan import Event, Plan

DEFECT = "OperatorDefect"
"""Reason of Accepted where no decision can be made, and of an Event."""


def accepted(job: Job) -> Row:
    """Of a job whose spec can be parsed."""
    if job.invalid is None:
        text = "The spec is valid."
        if job.left_out:
            text += f" This operator's release has no {name_fields(job.left_out)}: left out."
        return Row("Accepted", "True", "Accepted", text)
    text = f"{job.invalid} Set spec.suspend to true to be able to change it, or delete the RLJob."
    return Row("Accepted", "False", "InvalidSpec", text)


def undecided(job: Job, error: Exception, now: datetime) -> Plan:
    """What is told of a job about which nothing could be decided: the decision raised `error`."""
    # Not its message: it may be another one each time, and each would be written.
    text = (
        "The operator cannot decide what to do about this job, by a defect of its own: "
        f"{type(error).__name__}. What runs goes on; nothing of it is started, resized or ended. The "
        "operator goes on with other jobs, and tries this one again every minute, and at once when the spec "
        "changes. Undo the newest change of the spec, or use another release of the operator; and report the "
        "trace, which the operator's log has."
    )
    status = put(job.status, (Row("Accepted", "False", DEFECT, text),), job.generation, now)
    status = status.model_copy(update={"phase": phase(status)})
    told = condition(status, "Accepted")
    news = told is not None and reason(job.status, "Accepted") != DEFECT
    return Plan(status, events=(Event("Warning", DEFECT, told.message),) if news and told else ())


def decided(status: Status, job: Job, now: datetime) -> Status:
    """The status of a decision that was made, without word of an earlier one that failed."""
    if reason(status, "Accepted") != DEFECT:
        return status
    return put(status, (accepted(job),), job.generation, now)
