"""What must hold of every plan of the operator, whatever it was made from."""

from datetime import datetime, timedelta

from rljob_api.status import Status
from rljob_operator.plan.conditions import condition, finished, holds
from rljob_operator.plan.deadlines import REMOVAL_SECONDS
from rljob_operator.plan.decide import decide
from rljob_operator.plan.observed import Observed
from rljob_operator.plan.outdated import outdated
from rljob_operator.plan.plan import Plan
from rljob_operator.plan.times import after

ENDS = ("Complete", "Failed")
LEGAL = {
    None: {"Starting", "Suspended", "Pending"},
    "Pending": {"Starting", "Running", "Suspended", "Suspending", "Restarting", *ENDS},
    "Starting": {"Running", "Suspending", "Suspended", "Restarting", "Pending", *ENDS},
    "Running": {"Suspending", "Suspended", "Restarting", *ENDS},
    "Suspending": {"Suspended", "Running", "Starting", "Pending", "Restarting", *ENDS},
    "Suspended": {"Starting", "Pending", "Suspending", "Complete"},
    "Restarting": {"Starting", "Suspending", "Suspended", "Pending", *ENDS},
    "Complete": set(),
    "Failed": set(),
}
"""Phases that may follow each phase within one decision, besides itself."""


def check_plan(observed: Observed, plan: Plan, now: datetime) -> None:
    """What must hold of every plan, given what it was made from."""
    old, new = observed.job.status, plan.status
    assert new.phase == old.phase or new.phase in LEGAL[old.phase], f"{old.phase} -> {new.phase}"
    assert decide(observed, now) == plan
    check_conditions(old, new, observed.job.generation)
    check_suspension(observed, new, now)
    check_beginning(observed, plan, now)
    check_queue(observed, new)
    for entry in new.pools:
        existing = [pod for pod in observed.pods if pod.role == entry.name]
        assert entry.current <= len(existing) and entry.ready <= sum(pod.ready for pod in existing)
    if holds(new, "Suspended"):
        assert not observed.pods and not observed.clusters
    leaving = {name for entry in (*old.scale_downs, *new.scale_downs) for name in entry.victims}
    for event in plan.events:
        assert 0 < len(event.message) <= 1024
        if event.reason in ("RolloutWorkerLost", "TrainerWorkerLost"):
            assert not [name for name in leaving if f"{name} (" in event.message], (
                "a pod that goes is told as lost"
            )


def check_suspension(observed: Observed, new: Status, now: datetime) -> None:
    """Pods of a running driver go for a suspension only when it has answered, or had its time."""
    old = observed.job.status
    heads = [pod for pod in observed.pods if pod.uid == observed.job.status.head_pod]
    released = old.cluster_name is not None and new.cluster_name is None and not finished(new)
    if not (released and observed.job.spec.suspend and heads):
        return
    (head,) = heads
    gone = head.driver is not None or head.main is not None or head.phase != "Running"
    late = now >= after(new.suspend_time, observed.job.spec.run_policy.suspend_grace_seconds)
    lost = head.deleting is not None and now >= head.deleting
    answered = old.training is not None and old.training.suspended_at_step is not None
    assert gone or late or lost or answered, "the checkpoint is not written"


def check_beginning(observed: Observed, plan: Plan, now: datetime) -> None:
    """An attempt begins when no driver can run any more, as far as is seen."""
    if plan.status.attempt == observed.job.status.attempt:
        return
    assert not [cluster for cluster in observed.clusters if not cluster.deleting]
    for head in observed.pods:
        if head.role == "head" and head.phase == "Running" and head.driver is None and head.main is None:
            asked = head.deleting and head.deleting - timedelta(seconds=head.deletion_grace)
            assert asked and now - asked >= timedelta(seconds=REMOVAL_SECONDS), f"{head.name} may still run"


def check_queue(observed: Observed, new: Status) -> None:
    """A job that waits for its admission is not given up for it, and no clock of it runs."""
    old = observed.job.status
    held = [each for each in observed.clusters if each.suspended and each.name == old.cluster_name]
    if finished(old) or not held or observed.pods or observed.lost_heads or old.head_pod is not None:
        return
    if old.training is not None and old.training.attempt == old.attempt:
        return  # there was a head
    if outdated(old, observed.job.spec):
        return  # it is queued anew
    assert not finished(new)
    if not observed.job.spec.suspend:
        assert (new.attempt_time, new.start_time) == (None, None)
        assert condition(new, "PodsReady").reason == "WaitingForAdmission"


def check_conditions(old: Status, new: Status, generation: int) -> None:
    """Conditions are well-formed, and their times tell of flips alone."""
    kinds = [entry.type for entry in new.conditions]
    assert len(kinds) == len(set(kinds))
    for entry in new.conditions:
        before = condition(old, entry.type)
        assert entry.reason.isalnum() and entry.reason[0].isupper() and len(entry.message) <= 1024
        assert entry.observed_generation <= generation
        flipped = before is None or before.status != entry.status
        assert flipped or before.last_transition_time == entry.last_transition_time
