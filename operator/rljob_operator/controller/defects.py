"""How soon a job is looked at again for which the decision itself failed, by a defect of the operator. Pure.

Guarantees: however often such a job changes, it is decided on again after a back-off alone, at most a minute
long, also where the clock is set back; a changed spec is decided on at once.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from rljob_client.backoff import Backoff
from rljob_operator.controller.project import JobRef
from rljob_operator.plan.observed import Job

_BACKOFF = Backoff(base_seconds=1.0, cap_seconds=60.0)


@dataclass(frozen=True, slots=True)
class _Met:
    uid: str
    generation: int
    count: int
    due: datetime


class Defects:
    """Kept for each job whose newest decision failed."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._met: dict[JobRef, _Met] = {}

    def wait(self, ref: JobRef, job: Job, now: datetime) -> float:
        """Seconds until the job may be decided on again; 0: now."""
        met = self._met.get(ref)
        if met is None or (met.uid, met.generation) != (job.uid, job.generation):
            return 0.0
        left = (met.due - now).total_seconds()
        # More than was ever set: the clock was set back.
        return left if 0.0 < left <= _BACKOFF.cap_seconds else 0.0

    def met(self, ref: JobRef, job: Job, now: datetime) -> float:
        """The decision failed; the seconds until the next."""
        before = self._met.get(ref)
        count = before.count + 1 if before is not None and before.uid == job.uid else 1
        wait = _BACKOFF.delay(count, self._random)
        self._met[ref] = _Met(job.uid, job.generation, count, now + timedelta(seconds=wait))
        return wait

    def passed(self, ref: JobRef) -> None:
        """It was decided on, or is gone."""
        self._met.pop(ref, None)
