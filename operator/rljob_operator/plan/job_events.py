"""The Events that tell what happened to a job.

Guarantees: every event follows from the difference between the status on record and the new one, so that what
happened once is told once, whenever and by whomever it is noticed. Reasons are stable.
"""

from collections.abc import Iterator
from typing import Literal

from rljob_api.job import Spec
from rljob_api.status import Status
from rljob_operator.plan import losses, outdated, silence
from rljob_operator.plan.attempt import alive, attempt_of
from rljob_operator.plan.conditions import RESTART_REASONS, clip, condition, holds, reason
from rljob_operator.plan.observed import GROUPS, POOLS, Observed, Pod, Pool
from rljob_operator.plan.plan import Event
from rljob_operator.plan.pools import pool_status
from rljob_operator.plan.queueing import suspended
from rljob_operator.plan.times import moment
from rljob_operator.plan.volume import goes_on
from rljob_operator.plan.waiting import loss

_NAMED_PODS = 5
"""Lost pods that one Event names; it counts the others."""
_MAKING = "CreatingRayCluster"
_REFUSALS = ("InvalidSpec", "KubeRayMissing", "KubeRayUnsupported", "RayClusterRefused", "NameTaken")


def events(observed: Observed, spec: Spec | None, new: Status) -> tuple[Event, ...]:
    """What is told about the change from the observed status to `new`."""
    old = observed.job.status
    told = [*_attempts(old, new, spec), *_suspension(old, new)]
    if (
        spec is not None
        and not spec.suspend
        and old.cluster_name is not None
        and old.cluster_name == new.cluster_name
    ):
        # Both compare the pods of one attempt: where another one begins, all of them differ.
        told += [*_sizes(old, new), *_losses(observed, new)]
    told += [*_refusals(old, new), *_silence(old, new), *_outdated(old, new), *_ends(old, new)]
    return tuple(told)


def _event(kind: Literal["Normal", "Warning"], why: str, message: str) -> Event:
    return Event(kind, why, clip(message))


def _attempts(old: Status, new: Status, spec: Spec | None) -> Iterator[Event]:
    name, before, made = old.cluster_name, reason(old, "PodsReady"), reason(new, "PodsReady")
    # Told when the status stops saying that it is being made, not with the request, which may be refused.
    asked = name is not None and name == new.cluster_name and (before == _MAKING or _unmade(old))
    if asked and made != _MAKING and made not in _REFUSALS:
        yield _event("Normal", "CreatedRayCluster", f"Created RayCluster {name}")
    if holds(new, "Running") and not holds(old, "Running"):
        training = new.training
        step = ""
        if training is not None and training.attempt == new.attempt and training.total_steps > 0:
            step = f"; step {training.step} of {training.total_steps}"
        pods = "All pods are ready" if holds(new, "PodsReady") else "Not all pods are ready"
        yield _event("Normal", "Running", f"{pods}{step}")
    over = name is not None and new.cluster_name is None and reason(new, "Running") in RESTART_REASONS
    running = condition(new, "Running")
    if over and running is not None:
        if running.reason == "HeadLost":
            yield _event("Warning", "HeadLost", running.message)
        yield _event(
            "Warning", "Restarting", f"Attempt {new.attempt} is over. {_next(new, spec)} {running.message}"
        )


def _unmade(old: Status) -> bool:
    """Whether the attempt's RayCluster was refused, by the API server or by KubeRay, or its name was
    taken."""
    return old.head_pod is None and reason(old, "PodsReady") in ("RayClusterRefused", "NameTaken")


def _next(new: Status, spec: Spec | None) -> str:
    when = "" if new.attempt_time is None else f" at {moment(new.attempt_time):%H:%M:%S UTC}"
    return f"The next one begins{when}, {goes_on(spec, new)}."


def _suspension(old: Status, new: Status) -> Iterator[Event]:
    before, now = condition(old, "Suspended"), condition(new, "Suspended")
    if now is None or (before is not None and before.reason == now.reason and before.status == now.status):
        return
    if now.reason == "SuspendTimedOut":
        yield _event("Warning", "SuspendTimedOut", "The runtime did not answer within suspendGraceSeconds")
    if now.status == "True":
        yield _event("Normal", "Suspended", now.message)
    if now.reason == "Resumed":
        yield _event("Normal", "Resumed", now.message)


def _sizes(old: Status, new: Status) -> Iterator[Event]:
    for pool in POOLS:
        before, after = pool_status(old, pool).desired, pool_status(new, pool).desired
        if after > before:
            yield _event("Normal", "ScaledUp", f"{GROUPS[pool]} {before} → {after}")
    now = {entry.pool: entry for entry in new.scale_downs}
    for entry in old.scale_downs:
        # The entry goes with the last pod that it names.
        if entry.victims and entry.pool not in now:
            gone = len(entry.victims)
            yield _event(
                "Normal", "ScaledDown", f"{GROUPS[entry.pool]}: {gone} removed, {entry.replicas} wanted"
            )
    # Once for each wish, which `asked_time` tells from the one before.
    asked = {entry.pool: entry for entry in old.scale_downs if entry.timed_out}
    for entry in new.scale_downs:
        if entry.timed_out and (entry.pool not in asked or asked[entry.pool].asked_time != entry.asked_time):
            text = (
                f"{GROUPS[entry.pool]} {pool_status(new, entry.pool).current} → {entry.replicas} without the"
            )
            yield _event("Warning", "DrainTimedOut", f"{text} runtime's answer: drainGraceSeconds are over")


def _losses(observed: Observed, new: Status) -> Iterator[Event]:
    old = observed.job.status
    # Before all pods were ready none is lost, and what ends with its attempt is told by that.
    if not (holds(old, "Running") and holds(new, "Running")):
        return
    attempt = attempt_of(observed)
    if attempt is not None and suspended(attempt.cluster):
        return  # on purpose: its workers end before its head
    for pool in POOLS:
        seen = losses.seen(observed, new, pool)
        lost = max(losses.unreplaced(observed, new, pool), len(seen))
        if lost > 0:
            kind = "TrainerWorkerLost" if pool == "trainer" else "RolloutWorkerLost"
            named = seen or losses.ended(observed, new, pool)
            yield _event("Warning", kind, _lost(named, pool, lost))


def _lost(pods: list[Pod], pool: Pool, lost: int) -> str:
    named = [f"{pod.name} ({'deleted' if alive(pod) else loss(pod)})" for pod in pods[:_NAMED_PODS]]
    # Losses that nobody saw have no names.
    more = lost - len(named)
    if more > 0:
        named.append(f"{more} more" if named else f"{lost} {GROUPS[pool]} {'pod' if lost == 1 else 'pods'}")
    return f"Lost {', '.join(named)}"


def _refusals(old: Status, new: Status) -> Iterator[Event]:
    for kind in ("Accepted", "PodsReady"):
        before, now = condition(old, kind), condition(new, kind)
        if now is None or now.reason not in _REFUSALS:
            continue
        if kind == "PodsReady" and now.reason == "InvalidSpec":
            continue
        # By reason: a message may change at each try.
        if before is None or before.reason != now.reason:
            yield _event("Warning", now.reason, now.message)


def _silence(old: Status, new: Status) -> Iterator[Event]:
    now = condition(new, "Degraded")
    if now is not None and now.reason == silence.REASON != reason(old, "Degraded"):
        yield _event("Warning", now.reason, now.message)


def _outdated(old: Status, new: Status) -> Iterator[Event]:
    now = condition(new, "Accepted")
    if now is not None and now.reason == outdated.REASON != reason(old, "Accepted"):
        yield _event("Warning", now.reason, now.message)


def _ends(old: Status, new: Status) -> Iterator[Event]:
    for kind in ("Complete", "Failed"):
        if holds(new, kind) and not holds(old, kind):
            end = condition(new, kind)
            if end is not None:
                # Completed is the only reason of Complete.
                words = end.message if kind == "Complete" else f"{end.reason}: {end.message}"
                yield _event("Normal" if kind == "Complete" else "Warning", kind, words)
