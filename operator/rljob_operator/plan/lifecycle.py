"""What becomes of a job that has not finished: the attempt that runs it, from its cluster to its end.

Guarantees: see the policies that it puts together: beginning.py, upkeep.py, queueing.py, failure.py,
deadlines.py, suspension.py, scaling.py, finish.py. An attempt's end is looked for before anything else, so
that a result is never lost to a deadline or to a suspension that comes at the same moment.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from rljob_api.job import Spec
from rljob_api.status import ScaleDown, Status
from rljob_operator.plan import (
    beginning,
    deadlines,
    failure,
    finish,
    losses,
    outdated,
    queueing,
    readiness,
    silence,
    suspension,
    upkeep,
    waiting,
)
from rljob_operator.plan.accepted import accepted
from rljob_operator.plan.attempt import Attempt, attempt_of, completed
from rljob_operator.plan.conditions import Row, as_before, condition, holds, put
from rljob_operator.plan.failure import Ending, Kind
from rljob_operator.plan.observed import GROUPS, POOLS, Group, Observed, Pool
from rljob_operator.plan.plan import Action
from rljob_operator.plan.pools import count, pool_status, wanted
from rljob_operator.plan.scaling import answers, resize
from rljob_operator.plan.step import Step
from rljob_operator.plan.times import after, clock, moment, stamp


def advance(observed: Observed, spec: Spec, now: datetime) -> Step:
    """The next step of a job that has not finished and whose spec can be read."""
    job = observed.job
    status = put(suspension.noted(count(observed, spec), spec, now), (accepted(job),), job.generation, now)
    attempt = attempt_of(observed)
    if attempt is None:
        # A driver may have said its last word while its pods went; but more may have been asked for since.
        if completed(status) and not outdated.outdated(status, spec):
            return Step(finish.completed(status, job, spec, "", now))
        return _between(observed, spec, status, now)
    if attempt.head is not None:
        status = status.model_copy(update={"head_pod": attempt.head.uid})
    # Before deadlines and suspension: a driver that is done must not become a job that has failed.
    end = failure.ending(attempt, now)
    if end is not None:
        return _ended(observed, spec, status, end, now)
    status = queueing.clocked(status, attempt, now)
    # Also of a job that is to be suspended: its deadlines are None then.
    given_up = _too_long(observed, spec, status, now) or _never_ready(observed, spec, status, attempt, now)
    if given_up is not None:
        done = finish.completed(status, job, spec, "", now) if attempt.completed else None
        return Step(done or given_up)
    if spec.suspend:
        return _suspending(observed, spec, status, attempt, now)
    return _up_to_date(observed, spec, status, attempt, now)


def _between(observed: Observed, spec: Spec, status: Status, now: datetime) -> Step:
    if spec.suspend:
        return suspension.between_attempts(observed, spec, status, now)
    given_up = _too_long(observed, spec, status, now)
    if given_up is not None:
        return Step(given_up)
    step = beginning.begin(observed, spec, status, now)
    return replace(step, wakes=(*step.wakes, deadlines.active(step.status, spec)))


def _ended(observed: Observed, spec: Spec, status: Status, end: Ending, now: datetime) -> Step:
    """The attempt is over: the job is, or another attempt follows, or the job is suspended."""
    generation = observed.job.generation
    if end.kind is Kind.COMPLETE:
        return Step(finish.completed(status, observed.job, spec, end.message, now))
    if end.kind is Kind.REFUSED:
        return Step(finish.failed(status, generation, end.reason, end.message, now))
    failures = status.failures + (end.kind is Kind.FAILED)
    status = status.model_copy(update={"failures": failures})
    limit = spec.run_policy.backoff_limit
    # The limit counts retries: with 0 the first failure is the last.
    if end.kind is Kind.FAILED and failures > limit:
        text = f"Attempts that failed: {failures}; backoffLimit is {limit}. {end.message}"
        return Step(finish.failed(status, generation, "BackoffLimitExceeded", text, now))
    most = spec.run_policy.restart_limit
    if status.restarts >= most and not spec.suspend:
        text = f"Restarts since the job was last resumed: {status.restarts}; restartLimit is {most}."
        return Step(finish.failed(status, generation, "RestartLimitExceeded", f"{text} {end.message}", now))
    # A job that is to be suspended needs no other attempt: it is suspended as soon as its pods are gone.
    if spec.suspend:
        return _between(observed, spec, suspension.released(status, "Suspending", generation, now), now)
    return _between(observed, spec, _awaiting_restart(observed, status, end, now), now)


def _awaiting_restart(observed: Observed, status: Status, end: Ending, now: datetime) -> Status:
    if end.kind is Kind.FAILED:
        delay = failure.failure_backoff(status.failures)
    else:
        # A cluster that takes each attempt soon after its start is left alone for longer and longer.
        delay = failure.disruption_backoff(_lasted(observed, status, now), status.restarts)
    over = status.model_copy(
        update={
            "cluster_name": None,
            "head_pod": None,
            "scale_downs": [],
            # Between two attempts: when the next one may begin.
            "attempt_time": stamp(now + timedelta(seconds=delay)),
            # Without one the next attempt would count as the first: this one may have waited in a queue.
            "start_time": status.start_time or stamp(now),
        }
    )
    row = Row("Running", "False", end.reason, end.message)
    return put(over, (row,), observed.job.generation, now)


def _lasted(observed: Observed, status: Status, now: datetime) -> float:
    """For how many seconds the attempt that is over has had a RayCluster."""
    begun = moment(status.attempt_time) if status.attempt_time is not None else now
    attempt = attempt_of(observed)
    # The one time that nobody but the API server writes.
    if attempt is not None and attempt.cluster is not None:
        begun = max(begun, attempt.cluster.created)
    return (now - begun).total_seconds()


def _too_long(observed: Observed, spec: Spec, status: Status, now: datetime) -> Status | None:
    """The failed status where the job has been active for too long."""
    deadline = deadlines.active(status, spec)
    if deadline is None or now < deadline:
        return None
    seconds = spec.run_policy.active_deadline_seconds
    text = f"The job was active for longer than activeDeadlineSeconds ({seconds})."
    return finish.failed(status, observed.job.generation, "DeadlineExceeded", text, now)


def _never_ready(
    observed: Observed, spec: Spec, status: Status, attempt: Attempt, now: datetime
) -> Status | None:
    """The failed status where the pods that training needs have not become ready in time, and the driver has
    not told that it trains."""
    deadline = deadlines.start(status, spec)
    if deadline is None or now < deadline or queueing.suspended(attempt.cluster):
        return None
    row = waiting.pods_ready(attempt, spec, observed, None, now)
    # A driver that trains has what it needs, whatever is seen of its pods.
    if row.status == "True" or readiness.enough(attempt, spec) or readiness.trains(attempt, status):
        return None
    seconds = spec.run_policy.start_deadline_seconds
    text = f"What training needs was not ready within startDeadlineSeconds ({seconds}). {row.message}"
    return finish.failed(status, observed.job.generation, "StartDeadlineExceeded", text, now)


def _suspending(observed: Observed, spec: Spec, status: Status, attempt: Attempt, now: datetime) -> Step:
    generation = observed.job.generation
    why = suspension.may_release(status, spec, attempt, now)
    if why is not None:
        return _between(observed, spec, suspension.released(status, why, generation, now), now)
    rows = (*_health(observed, spec, status, attempt, now), suspension.waits(status, spec))
    wakes = (deadlines.suspend(status, spec), failure.given_up_at(attempt, now), attempt.heard_until)
    return Step(put(status, rows, generation, now), wakes=wakes)


def _up_to_date(observed: Observed, spec: Spec, status: Status, attempt: Attempt, now: datetime) -> Step:
    """An attempt that is to run with the spec as it is, where it can."""
    job = observed.job
    if attempt.cluster is None and attempt.pods == 0:
        status = status.model_copy(update={"spec_digest": outdated.mark(spec)})  # it is about to be made
    elif job.invalid is None and outdated.outdated(status, spec):
        end = outdated.ending(status, attempt, now)
        if end is not None:
            return _ended(observed, spec, status, end, now)
        status = put(status, (outdated.accepted(attempt),), job.generation, now)
    return _goes_on(observed, spec, status, attempt, now)


def _goes_on(observed: Observed, spec: Spec, status: Status, attempt: Attempt, now: datetime) -> Step:
    """An attempt that is to run: its cluster exists, and its pools are brought to the size that the spec asks
    for."""
    wakes = [failure.given_up_at(attempt, now), attempt.heard_until, waiting.notice_due(attempt.cluster)]
    making, again = upkeep.missing(observed, attempt, now)
    wakes.append(again)
    status, scaling, scaling_wakes = _resized(observed, spec, status, attempt, now)
    changing = (*upkeep.noted(attempt), *scaling)
    held = any(entry.refused for entry in status.scale_downs)
    refused = waiting.creation_failure(observed, attempt.name) if changing or held else None
    rows = (*_health(observed, spec, status, attempt, now), *suspension.withdrawn(status))
    if refused is not None and attempt.cluster is not None:
        rows = waiting.with_refusal(rows, refused)
        wakes.append(refused.again)
        changing = () if now < refused.again else changing
    unrestored = waiting.access_failure(observed, attempt.name)
    if unrestored is not None:
        rows = waiting.with_refusal(rows, unrestored)
    status = put(status, rows, observed.job.generation, now)
    wakes += [deadlines.active(status, spec), deadlines.start(status, spec), *scaling_wakes]
    wakes.append(silence.due(attempt, status) if holds(status, "Running") else None)
    return Step(status, (*changing, *making), tuple(wakes))


def _resized(
    observed: Observed, spec: Spec, status: Status, attempt: Attempt, now: datetime
) -> tuple[Status, list[Action], list[datetime | None]]:
    """The pools' next steps to the sizes that the spec asks for."""
    cluster, job = attempt.cluster, observed.job
    # What is being deleted is not resized: KubeRay removes all of its pods anyway.
    if cluster is None or cluster.deleting:
        return status, [], []
    said = answers(status.training, attempt.number, job.generation)
    refused = waiting.creation_failure(observed, attempt.name)
    entries: list[ScaleDown] = []
    actions: list[Action] = []
    wakes: list[datetime | None] = []
    for group in cluster.groups:
        old = next((entry for entry in status.scale_downs if entry.pool == group.pool), None)
        resized = resize(
            cluster=cluster,
            group=group,
            pods=attempt.workers[group.pool],
            desired=_desired(observed, spec, group),
            entry=old,
            said=said,
            grace=spec.run_policy.drain_grace_seconds,
            now=now,
            refused=refused.again if refused is not None else None,
        )
        entries += [resized.entry] if resized.entry is not None else []
        actions += [resized.action] if resized.action is not None else []
        wakes.append(resized.wake)
    return status.model_copy(update={"scale_downs": entries}), actions, wakes


def _desired(observed: Observed, spec: Spec, group: Group) -> int:
    """Workers that the pool is to have. While the spec is refused the trainer does not grow: it would be
    stopped for workers that it may not be able to train with, such as pods that share no storage."""
    desired = wanted(spec, group.pool)
    if group.pool == "trainer" and observed.job.invalid is not None:
        return min(desired, group.replicas)
    return desired


def _health(
    observed: Observed, spec: Spec, status: Status, attempt: Attempt, now: datetime
) -> tuple[Row, ...]:
    """PodsReady, Running and Degraded of an attempt that runs. While its RayCluster is suspended, its workers
    end on purpose: Degraded is left as it is."""
    runs = holds(status, "Running") or readiness.runs_without_all(attempt, spec, status, now)
    deadline = None if runs else deadlines.start_text(status, spec)
    ready = waiting.pods_ready(attempt, spec, observed, deadline, now)
    if ready.status == "False" and not runs:
        return ready, queueing.starting(status, attempt.cluster), *as_before(status, "Degraded")
    running = Row("Running", "True", "Running", _doing(spec, status, attempt))
    if queueing.suspended(attempt.cluster):
        return ready, running, *as_before(status, "Degraded")
    degraded = _degraded(observed, spec, status, attempt)
    return ready, running, silence.noted(degraded, attempt, status, now)


def _doing(spec: Spec, status: Status, attempt: Attempt) -> str:
    """What goes on in a running job besides training."""
    if attempt.head is None and attempt.cluster is not None:
        return f"Attempt {attempt.number} runs; its head pod is not seen yet."
    if attempt.head is None or attempt.head.deleting is not None or attempt.cluster is None:
        return f"Attempt {attempt.number} runs; its head pod is about to go."
    parts = [f"Attempt {attempt.number} runs"]
    for entry in status.scale_downs:
        name = GROUPS[entry.pool]
        if entry.refused:
            continue  # its own words follow
        if entry.victims:
            parts.append(f"{name} pods being removed, until {entry.replicas} are left")
        elif entry.asked_time is not None:
            asked = moment(entry.asked_time)
            until = clock(after(entry.asked_time, spec.run_policy.drain_grace_seconds), asked)
            waits_for = "to stop for" if entry.pool == "trainer" else "to free pods of"
            parts.append(
                f"waiting for the runtime {waits_for} {name}, to have {entry.replicas}, until {until}"
            )
    return "; ".join(parts) + "."


def _degraded(observed: Observed, spec: Spec, status: Status, attempt: Attempt) -> Row:
    """Degraded: True from the loss of a worker, or from a start without all workers, until every pool has all
    its workers ready. A pool that is made larger lacks workers too, but has lost none: that alone is not
    Degraded. An attempt that begins to run without all of the trainer's pods does so by its driver's word."""
    before = observed.job.status
    short = [pool for pool in POOLS if pool_status(status, pool).ready < wanted(spec, pool)]
    lost = [pool for pool in short if _lost(observed, spec, status, pool)]
    begins = not holds(before, "Running")
    old = condition(before, "Degraded")
    since_before = old is not None and old.status == "True" and old.reason != silence.REASON
    if not short or not (lost or begins or since_before):
        return Row("Degraded", "False", "AllWorkersReady", "No worker is lost.")
    text = f"Waiting for {waiting.missing(attempt, spec)}."
    if "trainer" in lost or (old is not None and old.reason == "TrainerWorkerLost" and "trainer" in short):
        return Row(
            "Degraded", "True", "TrainerWorkerLost", f"{text} Training goes on from the last checkpoint then."
        )
    if "trainer" in short and (begins or (old is not None and old.reason == "TrainerPodsNotReady")):
        return Row(
            "Degraded", "True", "TrainerPodsNotReady", f"{text} The driver tells of training all the same."
        )
    never = begins or (not lost and old is not None and old.reason == "RolloutWorkersMissing")
    kind = "RolloutWorkersMissing" if never else "RolloutWorkerLost"
    return Row("Degraded", "True", kind, f"{text} Training goes on without them.")


def _lost(observed: Observed, spec: Spec, status: Status, pool: Pool) -> bool:
    """Whether the pool has fewer ready workers than before, or was seen to lose one. Workers that go because
    the pool was made smaller are not lost, even where it is to be larger again by now; nor are those that
    work on beside a container that has ended."""
    before = min(pool_status(observed.job.status, pool).ready, wanted(spec, pool))
    now = pool_status(status, pool).ready + losses.leaving(observed, status, pool)
    now += losses.unready_for_a_sidecar(observed, pool)
    return now < before or bool(losses.seen(observed, status, pool))
