"""What an informer does when a list or a watch ends. Pure."""

from dataclasses import dataclass
from random import Random

from rljob_client.backoff import Backoff
from rljob_client.errors import ApiError, Gone, NoSuchResource, NotFound, TooManyRequests, Unreachable
from rljob_client.retry import asked_seconds

_HEALTHY_SECONDS = 10.0
"""A watch that lasted this long ends a row of failures."""
_REFUSALS_BEFORE_LIST = 3
"""Refused watches in a row after which everything is listed: a list costs the server far more than a try."""
_BACKOFF = Backoff(base_seconds=0.5, cap_seconds=30.0)


def went_back(known: str, newest: str) -> bool:
    """Whether a server that was at the resourceVersion `known`, and is at `newest` now, has forgotten some of
    it. Versions of one server are numbers that grow."""
    return int(newest) < int(known)


@dataclass(frozen=True)
class Next:
    """What to do after `wait_seconds`."""

    relist: bool
    """List everything, rather than watch on from where the last watch ended."""
    wait_seconds: float
    failures: int
    """Failures in a row, to be handed in next time."""


@dataclass(frozen=True)
class WatchRules:
    """How eagerly lists and watches are tried again."""

    backoff: Backoff = _BACKOFF
    absent_seconds: float = 15.0
    """Between two looks for a type that the server does not serve."""
    denials: int = 3
    """A type that was served before counts as removed when the server denies it so often in a row: one that
    has just started may not know yet what is defined in it."""
    denial_seconds: float = 3.0
    """Between two of those."""

    def removed(self, denials: int, served: bool) -> bool:
        """Whether a type that the server denied `denials` times in a row is not there. `served`: whether it
        was there before."""
        return denials >= (self.denials if served else 1)

    def after_list(self, error: ApiError, failures: int, random: Random, removed: bool = True) -> Next:
        """The list failed. `removed`: where the server denied the type, whether that is believed."""
        if isinstance(error, NoSuchResource) and not removed:
            return Next(True, self.denial_seconds, failures)
        if isinstance(error, NoSuchResource):
            return Next(True, self.absent_seconds * (1.0 - self.backoff.jitter * random.random()), 0)
        return Next(True, self._wait(error, failures + 1, random), failures + 1)

    def after_watch(
        self, error: ApiError | None, lasted_seconds: float, failures: int, random: Random
    ) -> Next:
        """The watch ended: with an error, or because the server closed it (None).

        Changes go on from where it ended, except where the server does not know that point any more (410), or
        can not say why it refuses it, such as after it was restored from a backup."""
        if lasted_seconds >= _HEALTHY_SECONDS:
            failures = 0
            if error is None:
                return Next(False, 0.0, 0)
        # At once the first time: that is how a watch that was away for long begins again.
        if isinstance(error, Gone):
            return Next(True, 0.0 if failures == 0 else self.backoff.delay(failures, random), failures + 1)
        wait = self._wait(error, failures + 1, random)
        # Without a connection, and where the server has too much to do, the place to go on from is still
        # good, and lists cost much.
        refused = error is not None and not isinstance(error, Unreachable | TooManyRequests)
        relist = isinstance(error, NotFound) or (refused and failures + 1 >= _REFUSALS_BEFORE_LIST)
        return Next(relist, wait, failures + 1)

    def _wait(self, error: ApiError | None, failures: int, random: Random) -> float:
        return max(self.backoff.delay(failures, random), asked_seconds(error))
