"""What this process remembers of creating the jobs' objects: what failed, and when it last looked.

Guarantees: a failure is remembered until the creation succeeds, or until the job's spec changes. A job's
access objects (ServiceAccount, Role, RoleBinding, NetworkPolicy) are checked every few minutes, since nothing
tells of their deletion, and for the first time soon after the start; the first checks of many jobs are
spread."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rljob_operator.controller.access import CreationError, NotRestored
from rljob_operator.controller.project import JobRef
from rljob_operator.plan.observed import CreationFailure, Job, Observed
from rljob_operator.plan.plan import (
    Action,
    CreateCluster,
    EnsureAccess,
    NoteHead,
    RestoreAccess,
    ScaleGroup,
)
from rljob_operator.plan.refusal_words import steady

_RECHECK = timedelta(seconds=420)
"""Between two checks of one job's access objects: shorter than the shortest resync, so that every resync
checks them."""
_FIRST_CHECKS_APART = timedelta(seconds=0.1)
"""Between the first checks of two jobs: with thousands of jobs, an operator that has just begun to lead has
more urgent things to do. A job that is passed over is checked at its next resync."""


_MAY_BE_REFUSED = (EnsureAccess, CreateCluster, NoteHead, ScaleGroup)


@dataclass(frozen=True, slots=True)
class _Failed:
    uid: str
    generation: int
    creation_failure: CreationFailure
    wait: timedelta
    """Until it was to be tried again, when it failed."""


class CreationHistory:
    """Kept for each job, in memory: a restart forgets it, and checks anew."""

    def __init__(self) -> None:
        self._failed: dict[JobRef, _Failed] = {}
        self._unrestored: dict[JobRef, _Failed] = {}
        """Of access objects that were deleted while the job ran."""
        self._looked: dict[JobRef, tuple[str, datetime]] = {}
        """UID of the job, and when its access objects were seen to be there, or passed over."""
        self._first_look: datetime | None = None
        """When the newest of those was due."""

    def known(self, ref: JobRef, observed: Observed, now: datetime) -> Observed:
        """The observation, with what is remembered of earlier creations."""
        job = observed.job
        uid, looked = self._looked.get(ref, ("", now))
        due = self._first_due(ref, job, now) if uid != job.uid else not _soon(now, looked, _RECHECK)
        return replace(
            observed,
            creation_failure=_remembered(self._failed, ref, job, now),
            access_failure=_remembered(self._unrestored, ref, job, now),
            access_due=due,
        )

    def _first_due(self, ref: JobRef, job: Job, now: datetime) -> bool:
        if self._first_look is not None and _soon(now, self._first_look, _FIRST_CHECKS_APART):
            self._looked[ref] = job.uid, now
            return False
        self._first_look = now
        # Not noted in `_looked`: `done` does that, once the check was carried out.
        return True

    def failed(self, ref: JobRef, job: Job, error: CreationError, now: datetime) -> bool:
        """Something of the job's attempt could not be made; whether that is news."""
        failures = self._unrestored if isinstance(error, NotRestored) else self._failed
        before = failures.get(ref)
        wait = timedelta(seconds=error.again_seconds)
        creation_failure = CreationFailure(
            job.status.cluster_name or "", error.reason, steady(str(error)), now + wait
        )
        failures[ref] = _Failed(job.uid, job.generation, creation_failure, wait)
        return before is None or before.creation_failure.message != creation_failure.message

    def done(self, ref: JobRef, job: Job, actions: tuple[Action, ...], now: datetime) -> None:
        """The actions of a plan were carried out."""
        # Actions stop at the first that fails: where a plan was carried out, none of its creations did.
        if any(isinstance(each, _MAY_BE_REFUSED) for each in actions):
            self._failed.pop(ref, None)
        if any(isinstance(each, EnsureAccess | RestoreAccess) for each in actions):
            self._unrestored.pop(ref, None)
            self._looked[ref] = job.uid, now

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        self._failed.pop(ref, None)
        self._unrestored.pop(ref, None)
        self._looked.pop(ref, None)


def _remembered(
    failures: dict[JobRef, _Failed], ref: JobRef, job: Job, now: datetime
) -> CreationFailure | None:
    """The job's failure, if it still counts."""
    failed = failures.get(ref)
    if failed is None:
        return None
    # A changed spec may be accepted: it is tried at once.
    if (failed.uid, failed.generation) != (job.uid, job.generation):
        del failures[ref]
        return None
    if failed.creation_failure.again - now > failed.wait:
        # The clock was set back: it is tried again as long from now as was meant.
        again = replace(failed.creation_failure, again=now + failed.wait)
        failed = failures[ref] = replace(failed, creation_failure=again)
    return failed.creation_failure


def _soon(now: datetime, then: datetime, wait: timedelta) -> bool:
    """Whether less than `wait` has gone by since `then`; not where the clock was set back meanwhile."""
    return timedelta(0) <= now - then < wait
