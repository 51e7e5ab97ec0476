"""How an attempt ended, and what that costs the job.

Guarantees: only what the job did itself counts against backoffLimit: an exit code 1 of the driver, a head
that was killed for its memory, a head that the kubelet evicted for the disk or memory that it used. What the
cluster did to it - a node lost, drained or started again, a pre-emption, a pod that somebody deleted or that
the kubelet did not let begin - starts the next attempt for free, restartLimit times at most. A configuration
that the runtime refuses is not tried again. A job whose driver wrote `completed` into the status is Complete,
whether the operator saw how its head pod ended or not.

Workers end no attempt: KubeRay replaces their pods, and the runtime restarts its ranks inside the cluster
a limited number of times; beyond it the driver exits with 1. That exit code does not count against
backoffLimit where the cluster took a trainer pod, and the training has not come further since.
"""

import signal
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, IntEnum

from rljob_operator.plan.attempt import UNSEEN, Attempt
from rljob_operator.plan.conditions import tail
from rljob_operator.plan.deadlines import LATE_DELETION
from rljob_operator.plan.last_words import last_words
from rljob_operator.plan.observed import EVICTED, ContainerEnd, Pod
from rljob_operator.plan.queueing import holding, suspended
from rljob_operator.plan.times import after, stamp

SHORTEST_BACKOFF = 1.0
"""Seconds between two attempts at the least, so that the end of one and the begin of the next are two status
writes, and an event tells of each."""
FIRST_BACKOFF = 10.0
LONGEST_BACKOFF = 300.0


class DriverExit(IntEnum):
    """Exit codes of the driver."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    # 128 + SIGINT, as shells report it.
    STOPPED = 130


_AS_TOLD = (0, 128 + signal.SIGINT, 128 + signal.SIGKILL, 128 + signal.SIGTERM)
"""Exit codes of containers that are told to end."""
_UNWITNESSED = ("Unknown", "ContainerStatusUnknown")
"""The runtime's and the kubelet's reasons for a container that they found gone, as after a crash of the node:
its exit code is theirs, too."""


class Kind(Enum):
    """What the end of an attempt means for the job."""

    COMPLETE = "the training is done"
    REFUSED = "the runtime refuses the job: no attempt can succeed"
    FAILED = "the job failed by itself: counts against backoffLimit"
    DISRUPTED = "the cluster ended the attempt: does not count"


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended."""

    kind: Kind
    reason: str
    """`HeadLost`, `AttemptFailed` or `SpecOutdated`, where another attempt may follow."""
    message: str
    """For people: what happened, with the driver's last words."""


def ending(attempt: Attempt, now: datetime) -> Ending | None:
    """How the attempt ended; None while it goes on, or has no head yet."""
    ended = _ending(attempt, now)
    # A head that ends after that with an error loses nothing: results were written before.
    if attempt.completed and (ended is not None or not attempt.head_runs):
        # Its pods may have gone before anybody saw how they ended, or have been replaced.
        done = ended is not None and ended.kind is Kind.COMPLETE
        return ended if done else Ending(Kind.COMPLETE, "Completed", "")
    if ended is not None and ended.reason == "HeadLost" and suspended(attempt.cluster):
        return replace(ended, message=f"{_suspended_by(attempt)}. {ended.message}")
    return ended


def _suspended_by(attempt: Attempt) -> str:
    if holding(attempt.cluster) is not None:
        return f"Kueue evicted RayCluster {attempt.name}"
    return f"RayCluster {attempt.name} was suspended by somebody else (spec.suspend)"


def _ending(attempt: Attempt, now: datetime) -> Ending | None:
    head = attempt.head
    if head is None:
        return _gone(attempt) if attempt.head_gone or _is_late(attempt, now) else None
    by_itself = _ended(head, attempt)
    if by_itself is not None:
        return by_itself
    if not _is_late(attempt, now):
        return None
    return _lost(f"Head pod {head.name} is lost: {_fate(head)}.")


def given_up_at(attempt: Attempt, now: datetime) -> datetime | None:
    """When a head that is being deleted counts as lost although it still exists, or one that was never seen
    although there was one."""
    head = attempt.head
    if head is not None:
        return None if head.deleting is None else head.deleting + LATE_DELETION
    known = attempt.head_known_at(now)
    return None if known is None else after(stamp(known), UNSEEN.total_seconds())


def _is_late(attempt: Attempt, now: datetime) -> bool:
    given_up = given_up_at(attempt, now)
    return given_up is not None and now >= given_up


def _gone(attempt: Attempt) -> Ending:
    head = attempt.last_head
    if head is None:
        return _lost(f"The head pod of RayCluster {attempt.name} is gone.")
    ended = _ended(head, attempt)
    if ended is not None:
        return ended
    return _lost(f"Head pod {head.name} is gone: {_fate(head)}.")


def _ended(head: Pod, attempt: Attempt) -> Ending | None:
    """What the head's containers tell, whether the pod still exists or not."""
    if head.driver is not None:
        # The driver's own verdicts come first: they hold, whatever happened to its pod afterwards.
        verdict = _verdict(head.driver)
        if verdict is not None:
            return verdict
    if head.disrupted == EVICTED:
        return _own(f"The kubelet evicted head pod {head.name}: {_fate(head)}.")
    if head.driver is not None:
        return _driver_ended(head, head.driver, attempt)
    if head.main is not None:
        if _ray_by_itself(head.main, head):
            return _own(f"{_rays_end(head, head.main)}.")
        # What Ray says while it is told to end reads as if one of its processes had failed.
        silent = replace(head.main, message="")
        return _lost(f"{_rays_end(head, silent)} ({_fate(head)}).")
    if head.phase in ("Failed", "Succeeded"):
        text = f"Head pod {head.name} ended"
        return _lost(f"{text}: {_fate(head)}.") if _taken(head) else _own(f"{text}.")
    return None


def _verdict(end: ContainerEnd) -> Ending | None:
    """What the driver said of the job; None where it only ended."""
    if end.exit_code == DriverExit.DONE:
        return Ending(Kind.COMPLETE, "Completed", last_words(end.message))
    if end.exit_code == DriverExit.REFUSED:
        return Ending(Kind.REFUSED, "InvalidConfiguration", last_words(end.message) or _words(end))
    return None


def _driver_ended(head: Pod, end: ContainerEnd, attempt: Attempt) -> Ending:
    text = f"The driver ended: {_words(end)}"
    # Without Ray the driver fails too, in words that do not name the cause.
    if head.main is not None and head.main.reason == "OOMKilled":
        return _own(f"Ray's head was killed for its memory ({_words(head.main)}). {text}")
    # KubeRay then deletes the pod, for which the driver is stopped.
    if head.main is not None and head.main.finished <= end.finished and _ray_by_itself(head.main, head):
        return _own(f"{_rays_end(head, head.main)}. {text}")
    if end.exit_code == DriverExit.STOPPED:
        return _lost(f"The driver was stopped ({_fate(head)}).")
    if not _by_itself(end, head):
        return _lost(f"The driver ended: {_words(end, told_to_end=True)} ({_fate(head)})")
    # The driver gives up when trainers keep dying: by its exit code that is its own failure.
    there = [pod.name for pod in attempt.workers["trainer"] if cluster_took(pod)]
    # By then KubeRay has most often replaced it, in vain.
    taken = there or [pod.name for pod in attempt.taken_trainers]
    if end.exit_code == DriverExit.FAILED and taken:
        return Ending(
            Kind.DISRUPTED, "AttemptFailed", f"{text} (trainer pod {taken[0]} was taken by the cluster)"
        )
    return _own(f"{text}{_before(end, head)}")


def _before(end: ContainerEnd, head: Pod) -> str:
    """The failure of a container that the driver may have failed for: its words name no cause."""
    helper = head.helper
    if helper is None or helper.end.exit_code == 0 or helper.end.finished > end.finished:
        return ""
    return f" (container {helper.name} had ended before: {_words(helper.end)})"


def cluster_took(worker: Pod) -> bool:
    """Whether a worker was ended by its node or the cluster, and not by what it did itself."""
    lost = worker.main is not None and worker.main.reason in _UNWITNESSED
    return lost if worker.disrupted is None else worker.disrupted != EVICTED


def _own(message: str) -> Ending:
    return Ending(Kind.FAILED, "AttemptFailed", message)


def _lost(message: str) -> Ending:
    return Ending(Kind.DISRUPTED, "HeadLost", message)


def _by_itself(end: ContainerEnd, pod: Pod) -> bool:
    """Whether a container ended without the cluster's doing. One that used up its memory always did."""
    if end.reason == "OOMKilled":
        return True
    if pod.disrupted is not None or end.reason in _UNWITNESSED:
        return False
    # What ended before the request ended by itself.
    return pod.deleting is None or end.finished < _asked(pod.deleting, pod)


def _ray_by_itself(end: ContainerEnd, head: Pod) -> bool:
    """`_by_itself` of Ray's container in a head."""
    if _by_itself(end, head):
        return True
    if head.disrupted is not None or head.deleting is None:
        return False
    # Times have whole seconds. KubeRay deletes a head as soon as Ray's container has ended; one that is told
    # to end waits for the driver's checkpoint.
    return end.finished == _asked(head.deleting, head) and end.exit_code not in _AS_TOLD


def _asked(deleting: datetime, pod: Pod) -> datetime:
    """When it was asked that a pod be deleted."""
    return deleting - timedelta(seconds=pod.deletion_grace)


def _rays_end(head: Pod, end: ContainerEnd) -> str:
    return f"Ray's head in pod {head.name} ended: {_words(end)}"


def _taken(pod: Pod) -> bool:
    return pod.disrupted is not None or pod.deleting is not None


def _fate(pod: Pod) -> str:
    where = "" if pod.node is None else f", node {pod.node}"
    if pod.disrupted is not None:
        said = tail(pod.eviction).rstrip(".")
        return f"{pod.disrupted}{where}" + (f": {said}" if said else "")
    if pod.deleting is not None:
        return f"deleted{where}"
    unwitnessed = any(end is not None and end.reason in _UNWITNESSED for end in (pod.driver, pod.main))
    return f"{'as when its node starts again' if unwitnessed else 'for no reason that the pod names'}{where}"


def _words(end: ContainerEnd, told_to_end: bool = False) -> str:
    # "Error" is the kubelet's word for every exit code but 0.
    reason = "" if end.reason in ("", "Error") else f"{end.reason}, "
    said = last_words(end.message, told_to_end)
    return f"{reason}exit code {end.exit_code}" + (f": {said}" if said else "")


def failure_backoff(failures: int) -> float:
    """Seconds between the end of an attempt that failed by itself and the next: 10, 20, 40 ... 300.

    `failures` counts the newest one too.
    """
    # The exponent is bounded, since a power of a large count would overflow.
    return min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(max(failures - 1, 0), 10))


def disruption_backoff(lasted: float, restarts: int) -> float:
    """Seconds between the end of an attempt that the cluster took and the next: one after one that lasted
    some time, else the longer the more restarts there were, so that heads that vanish at once cost little.

    `lasted` is the length of the attempt in seconds, `restarts` the restarts before this one.
    """
    return SHORTEST_BACKOFF if lasted >= LONGEST_BACKOFF else failure_backoff(restarts + 1)
