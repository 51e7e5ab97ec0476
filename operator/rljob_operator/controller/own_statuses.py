"""The jobs' statuses as this operator knows them: what it found when it looked first, then what it wrote.

A job's own token may write the status too. What is not the operator's writing is put right, and nothing is
decided by it.

Guarantees: but for `training`, no decision after the first about a job rests on what somebody else wrote into
its status; putting it right costs a write every `REPAIR_SECONDS` at most, however often it is changed.
Nothing here reads a clock.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rljob_api.status import Status
from rljob_operator.controller.project import JobRef
from rljob_operator.plan.believed import plausible
from rljob_operator.plan.decide import CONTROLLER
from rljob_operator.plan.observed import Job, Observed

REPAIR_SECONDS = 30.0
"""Between two writes that only put right what somebody else wrote."""


@dataclass(frozen=True, slots=True)
class _Known:
    uid: str
    status: Status
    repaired: datetime | None = None


class OwnStatuses:
    """Kept for each job, in memory: a new leader looks anew."""

    def __init__(self) -> None:
        self._known: dict[JobRef, _Known] = {}

    def job(self, ref: JobRef, job: Job) -> Job:
        """The job with its status as it is known; as it was read where it was not looked at before."""
        known = self._known.get(ref)
        if known is None or known.uid != job.uid or same(known.status, job.status):
            return job
        return replace(job, status=known.status.model_copy(update={"training": job.status.training}))

    def known(self, ref: JobRef, observed: Observed, now: datetime) -> Observed:
        """The observation, with the status as it is known from now on."""
        job, known = observed.job, self._known.get(ref)
        if job.managed_by != CONTROLLER:
            return observed
        if known is None or known.uid != job.uid:
            self._known[ref] = _Known(job.uid, plausible(observed, now))
        return replace(observed, job=self.job(ref, job))

    def wrote(self, ref: JobRef, job: Job, status: Status) -> None:
        """This status is the job's now."""
        known = self._known.get(ref)
        repaired = known.repaired if known is not None and known.uid == job.uid else None
        self._known[ref] = _Known(job.uid, status, repaired)

    def repair(self, ref: JobRef, now: datetime) -> float:
        """Seconds until the status may be put right; with 0 it is done now."""
        known = self._known[ref]
        if known.repaired is not None:
            left = known.repaired + timedelta(seconds=REPAIR_SECONDS) - now
            if left > timedelta():
                return left.total_seconds()
        self._known[ref] = replace(known, repaired=now)
        return 0.0

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        self._known.pop(ref, None)


def same(one: Status, other: Status) -> bool:
    """Whether the operator's part of two statuses is the same."""
    return one == other or one.model_copy(update={"training": other.training}) == other


def changed_fields(one: Status, other: Status) -> list[str]:
    """Names of the fields of the operator's part that differ, as the API has them."""
    names = {name: field.alias or name for name, field in Status.model_fields.items() if name != "training"}
    return [alias for name, alias in names.items() if getattr(one, name) != getattr(other, name)]
