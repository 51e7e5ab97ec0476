"""What of a job's status the operator goes by.

A job's own token may write its status, and so may code that runs beside the driver. Two things follow. A
decision must not fail on what it reads there: `readable`. And what the operator has done itself must not be
read there where something else tells it: the operator's own memory or, before it has any, the RayClusters,
which a job's token cannot write: `plausible`.

Guarantees: both accept every status that can be parsed; what is left out or replaced is as if it had not been
written. A status that the operator wrote is returned as it is.
"""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from rljob_api.status import ScaleDown, Status, TrainingStatus
from rljob_operator.plan.attempt import cluster_name, own_clusters
from rljob_operator.plan.conditions import finished
from rljob_operator.plan.failure import LONGEST_BACKOFF
from rljob_operator.plan.observed import Cluster, Observed
from rljob_operator.plan.times import moment, stamp

MOST_ATTEMPTS = 999_999_999
"""Largest number of an attempt: the RayCluster's name, with the longest name of an RLJob, is then as long as
KubeRay allows."""
AHEAD = timedelta(seconds=60)
"""By how much the clock of who wrote a time may be ahead of this one's."""
_EARLIEST_YEAR = 2000
_UID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def readable(observed: Observed, now: datetime) -> Status:
    """The status without times, numbers and names that cannot be: no decision fails on it, and no deadline is
    put off by it for ever."""
    status = observed.job.status
    attempt = min(max(status.attempt, 0), MOST_ATTEMPTS)
    name = _cluster(observed, status, attempt)
    # Between two attempts it says when the next one may begin.
    begins = now + AHEAD + (timedelta() if name is not None else timedelta(seconds=LONGEST_BACKOFF))
    changes: dict[str, Any] = {
        "attempt": attempt,
        "failures": min(max(status.failures, 0), MOST_ATTEMPTS),
        "restarts": min(max(status.restarts, 0), MOST_ATTEMPTS),
        "cluster_name": name,
        "head_pod": status.head_pod if _UID.fullmatch(status.head_pod or "") else None,
        "start_time": _time(status.start_time, now + AHEAD, now),
        "attempt_time": _time(status.attempt_time, begins, now),
        "suspend_time": _time(status.suspend_time, now + AHEAD, now),
        "completion_time": _ended(status, now),
        "scale_downs": _each(status.scale_downs, lambda entry: _scale_down(entry, now)),
        "training": _training(status.training, now),
    }
    return _changed(status, changes)


def plausible(observed: Observed, now: datetime) -> Status:
    """`readable`, and as the RayClusters of the job tell what the operator has done: for an operator that
    looks at the job for the first time, and has to believe the rest."""
    status = readable(observed, now)
    newest = max(
        (cluster for cluster in own_clusters(observed) if not cluster.deleting),
        key=lambda cluster: cluster.attempt,
        default=None,
    )
    # Nothing runs with the job's token: the status is as the operator left it.
    if newest is None or finished(status):
        return status
    # One more: it was written that the next attempt begins, and the one before is not deleted yet.
    if status.attempt not in (newest.attempt, newest.attempt + 1):
        status = status.model_copy(update={"attempt": newest.attempt, "cluster_name": newest.name})
    return _as_recorded(status, newest)


def _as_recorded(status: Status, newest: Cluster) -> Status:
    runs = status.attempt == newest.attempt and status.cluster_name is not None
    # Another head than the one on record would pass for a loss, which ends the attempt.
    if runs and newest.head is not None:
        status = _changed(status, {"head_pod": newest.head})
    record = newest.record
    if record is None:
        return status
    # The end of an attempt, which is written before its RayCluster is deleted, may have been a failure.
    failures = min(max(status.failures, record.failures), record.failures + (not runs))
    changes: dict[str, Any] = {"failures": failures}
    if runs:
        changes["restarts"] = record.restarts
        # A queued one counts from its admission, which came after the note.
        if newest.queue is None:
            changes["start_time"] = record.start_time or status.start_time
    return _changed(status, changes)


def _cluster(observed: Observed, status: Status, attempt: int) -> str | None:
    """Name of the attempt's RayCluster, where one is named: it follows from the job's name."""
    name = cluster_name(observed.job.name, attempt)
    if status.cluster_name is None or (status.cluster_name == name and attempt > 0):
        return status.cluster_name
    return name if any(cluster.name == name for cluster in own_clusters(observed)) else None


def _time(text: str | None, latest: datetime, instead: datetime) -> str | None:
    """A time as it is; None where it is none, `instead` where it is after `latest`."""
    time = None if text is None else _moment(text)
    if time is None:
        return None
    return text if time <= latest else stamp(instead)


def _moment(text: str) -> datetime | None:
    try:
        time = moment(text)
    except (ValueError, OverflowError):
        return None
    return time if time.year >= _EARLIEST_YEAR else None


def _ended(status: Status, now: datetime) -> str | None:
    """Without a time, a finished job would be kept for ever."""
    time = _time(status.completion_time, now + AHEAD, now)
    return stamp(now) if time is None and status.completion_time is not None else time


def _scale_down(entry: ScaleDown, now: datetime) -> ScaleDown:
    if entry.asked_time is None:
        return entry
    asked = _time(entry.asked_time, now + AHEAD, now) or stamp(now)
    return entry if asked == entry.asked_time else entry.model_copy(update={"asked_time": asked})


def _training(training: TrainingStatus | None, now: datetime) -> TrainingStatus | None:
    """The runtime's part: a report from the future has no time."""
    if training is None or training.time is None:
        return training
    time = _moment(training.time)
    known = time is not None and time <= now + AHEAD
    return training if known else training.model_copy(update={"time": None})


def _each(entries: list[ScaleDown], change: Callable[[ScaleDown], ScaleDown]) -> list[ScaleDown]:
    changed = [change(entry) for entry in entries]
    return entries if changed == entries else changed


def _changed(status: Status, changes: dict[str, Any]) -> Status:
    """The status with these fields; the very same where they are as they were."""
    if all(getattr(status, name) == value for name, value in changes.items()):
        return status
    return status.model_copy(update=changes)
