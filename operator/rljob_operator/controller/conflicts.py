"""How soon a job is looked at again for which what was decided could not be done, because the job, or what
was made for it, had changed or was gone. Pure.

Guarantees: the job is then read from the API server before it is decided on again. Where that does not help,
such as under a job that writes without end, or while a watch is dead that would tell of a RayCluster, the
tries become rare; each of them begins with a read, so that it succeeds as soon as nothing changes for the
moment that it takes. A clock that is set back makes no wait longer.
"""

from datetime import datetime, timedelta

from rljob_operator.controller.project import JobRef

_FIRST_SECONDS, _LONGEST_SECONDS = 0.25, 8.0


class Conflicts:
    """Kept for each job whose newest plan could not be carried out."""

    def __init__(self) -> None:
        self._met: dict[JobRef, tuple[int, datetime]] = {}
        """How often in a row, and when it is tried again."""

    def of(self, ref: JobRef) -> int:
        """How many plans in a row could not be carried out."""
        return self._met.get(ref, (0, None))[0]

    def wait(self, ref: JobRef, now: datetime) -> float:
        """Seconds until the job may be decided on again; 0: now. The first time it may at once."""
        count, due = self._met.get(ref, (0, now))
        left = (due - now).total_seconds()
        # More than was ever set: the clock was set back.
        return left if count > 1 and 0.0 < left <= _LONGEST_SECONDS else 0.0

    def met(self, ref: JobRef, now: datetime) -> float:
        """A plan could not be carried out; the seconds until the next try."""
        count = self.of(ref) + 1
        wait = min(_FIRST_SECONDS * 2.0 ** min(count - 1, 10), _LONGEST_SECONDS)
        self._met[ref] = count, now + timedelta(seconds=wait)
        return wait

    def passed(self, ref: JobRef) -> None:
        """A plan was carried out, or the job is gone."""
        self._met.pop(ref, None)
