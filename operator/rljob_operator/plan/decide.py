"""The one decision: what is to be done about an RLJob, given what is seen of it and the time.

Guarantees: pure; the same input gives the same plan, and a plan that was carried out leaves nothing to do
until something changes or `requeue_after` is over. No status makes it fail. An RLJob of another controller is
left alone, its status too.
"""

from dataclasses import replace
from datetime import datetime

from rljob_api.status import Status
from rljob_operator.plan import finish, lifecycle
from rljob_operator.plan.accepted import decided
from rljob_operator.plan.attempt import own_clusters
from rljob_operator.plan.believed import readable
from rljob_operator.plan.conditions import Row, finished, phase, put
from rljob_operator.plan.job_events import events
from rljob_operator.plan.observed import Job, Observed
from rljob_operator.plan.plan import DeleteCluster, Plan
from rljob_operator.plan.step import Step

CONTROLLER = "rljob.dev/operator"
"""Value of `spec.managedBy` that stands for this operator."""


def decide(observed: Observed, now: datetime) -> Plan | None:
    """What is to be done now; None: nothing, and no status either, since another controller manages the job.

    `now` is an aware datetime in UTC.
    """
    job = observed.job
    if job.managed_by != CONTROLLER:
        return None
    if job.deleting:
        return Plan(job.status)  # owner references take everything along
    written = job.status.training
    observed = replace(observed, job=replace(job, status=readable(observed, now)))
    step = _step(observed, now)
    # The runtime's part is not the operator's to write, whatever it goes by.
    status = decided(step.status, job, now)
    status = status.model_copy(update={"phase": phase(status), "training": written})
    waits = [(wake - now).total_seconds() for wake in step.wakes if wake is not None and wake > now]
    return Plan(
        status=status,
        actions=(*_superseded(observed, step), *step.actions),
        events=events(observed, job.spec, status),
        requeue_after=min(waits, default=None),
    )


def rests_on_absence(before: Status, plan: Plan) -> bool:
    """Whether the plan ends an attempt, or begins another one after it: what is not seen of pods may be there
    where the view of them is old. `before`: the status that the plan was made from."""
    return before.attempt > 0 and plan.status.cluster_name != before.cluster_name


def _step(observed: Observed, now: datetime) -> Step:
    job = observed.job
    if finished(job.status):
        return finish.after_finish(observed, job.spec, now)
    if job.spec is None:
        return _unreadable(job, now)
    step = lifecycle.advance(observed, job.spec, now)
    if not finished(step.status):
        return step
    # In the same plan: one status write tells of the end and of what follows it.
    ended = replace(observed, job=replace(job, status=step.status))
    return finish.after_finish(ended, job.spec, now)


def _unreadable(job: Job, now: datetime) -> Step:
    """A spec that cannot be parsed, such as one of a newer version: what runs goes on."""
    text = f"{job.invalid or 'The spec cannot be read.'} What runs goes on; nothing new is started."
    status = job.status.model_copy(update={"observed_generation": job.generation})
    return Step(put(status, (Row("Accepted", "False", "InvalidSpec", text),), job.generation, now))


def _superseded(observed: Observed, step: Step) -> tuple[DeleteCluster, ...]:
    """Every RayCluster of the job that no attempt needs any more."""
    if observed.job.spec is None and not finished(observed.job.status):
        return ()
    return tuple(
        DeleteCluster(cluster.name, cluster.uid)
        for cluster in own_clusters(observed)
        if cluster.name != step.status.cluster_name and not cluster.deleting
    )
