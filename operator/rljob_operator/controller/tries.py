"""What this process knows of its tries to make the jobs' objects.

Guarantees: what could not be made is known until it could, or until the job asks for something else; a job's
access objects are due to be looked at once in a while, and first when nothing is known of them, but for those
of many jobs at once.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rljob_operator.controller.access import NotMade
from rljob_operator.controller.project import JobRef
from rljob_operator.plan.observed import Hindrance, Job, Observed
from rljob_operator.plan.plan import Action, CreateCluster, EnsureAccess, RestoreAccess

_LOOK = timedelta(seconds=420)
"""Between two looks at the access objects: shorter than any resync, so that each of them looks."""
_APART = timedelta(seconds=0.1)
"""Between the first looks at two jobs': an operator that has just begun to lead has more urgent things to do,
where there are thousands. The next resync looks at the others."""


@dataclass(frozen=True, slots=True)
class _Failed:
    uid: str
    generation: int
    hindrance: Hindrance


class Tries:
    """By job."""

    def __init__(self) -> None:
        self._failed: dict[JobRef, _Failed] = {}
        self._looked: dict[JobRef, tuple[str, datetime]] = {}
        """UID of the job, and when its access objects were seen to be there, or passed over."""
        self._first_look: datetime | None = None
        """When the newest of those was due."""

    def known(self, ref: JobRef, observed: Observed, now: datetime) -> Observed:
        """The observation, with what is known of earlier tries."""
        job, failed = observed.job, self._failed.get(ref)
        if failed is not None and (failed.uid, failed.generation) != (job.uid, job.generation):
            del self._failed[ref]
            failed = None
        uid, looked = self._looked.get(ref, ("", now))
        due = self._first_due(ref, job, now) if uid != job.uid else now - looked >= _LOOK
        return replace(observed, hindrance=None if failed is None else failed.hindrance, access_due=due)

    def _first_due(self, ref: JobRef, job: Job, now: datetime) -> bool:
        if self._first_look is not None and now - self._first_look < _APART:
            self._looked[ref] = job.uid, now
            return False
        self._first_look = now
        return True

    def failed(self, ref: JobRef, job: Job, error: NotMade, now: datetime) -> bool:
        """Something of the job's attempt could not be made; whether that is news."""
        before = self._failed.get(ref)
        again = now + timedelta(seconds=error.again_seconds)
        hindrance = Hindrance(job.status.cluster_name or "", error.reason, str(error), again)
        self._failed[ref] = _Failed(job.uid, job.generation, hindrance)
        return before is None or before.hindrance.message != hindrance.message

    def done(self, ref: JobRef, job: Job, actions: tuple[Action, ...], now: datetime) -> None:
        """The actions of a plan were carried out."""
        if any(isinstance(each, EnsureAccess | CreateCluster | RestoreAccess) for each in actions):
            self._failed.pop(ref, None)
        if any(isinstance(each, EnsureAccess | RestoreAccess) for each in actions):
            self._looked[ref] = job.uid, now

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        self._failed.pop(ref, None)
        self._looked.pop(ref, None)
