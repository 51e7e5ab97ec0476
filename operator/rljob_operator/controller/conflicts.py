"""How soon a job is looked at again whose status could not be written because it had changed. Pure.

Guarantees: after a refused write the job is read from the API server before it is decided on again; where it
changes time and again, such as under a job that writes without end, the tries become rare, and each of them
begins with a read, so that it succeeds as soon as nothing changes for the moment that it takes.
"""

from datetime import datetime, timedelta

from rljob_operator.controller.project import JobRef

_FIRST_SECONDS, _LONGEST_SECONDS = 0.25, 8.0


class Conflicts:
    """Kept for each job whose newest write was refused."""

    def __init__(self) -> None:
        self._met: dict[JobRef, tuple[int, datetime]] = {}
        """How often in a row, and when it is tried again."""

    def of(self, ref: JobRef) -> int:
        """How many writes in a row were refused."""
        return self._met.get(ref, (0, None))[0]

    def wait(self, ref: JobRef, now: datetime) -> float:
        """Seconds until the job may be written again; 0: now. The first time it may at once."""
        count, due = self._met.get(ref, (0, now))
        return max((due - now).total_seconds(), 0.0) if count > 1 else 0.0

    def met(self, ref: JobRef, now: datetime) -> float:
        """A write was refused; the seconds until the next try."""
        count = self.of(ref) + 1
        wait = min(_FIRST_SECONDS * 2.0 ** min(count - 1, 10), _LONGEST_SECONDS)
        self._met[ref] = count, now + timedelta(seconds=wait)
        return wait

    def passed(self, ref: JobRef) -> None:
        """A write succeeded, or the job is gone."""
        self._met.pop(ref, None)
