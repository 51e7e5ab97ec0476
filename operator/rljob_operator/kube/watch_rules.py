"""What an informer does when a list or a watch ends. Pure."""

from dataclasses import dataclass
from random import Random

from rljob_operator.kube.backoff import Backoff
from rljob_operator.kube.errors import ApiError, Gone, NoSuchResource, NotFound, Unreachable

_HEALTHY_SECONDS = 10.0
_REFUSALS_BEFORE_LIST = 3
_BACKOFF = Backoff(base_seconds=0.5, cap_seconds=30.0)


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

    def after_list(self, error: ApiError, failures: int, random: Random) -> Next:
        """The list failed."""
        if isinstance(error, NoSuchResource):
            return Next(True, self.absent_seconds * (1.0 - self.backoff.jitter * random.random()), 0)
        return Next(True, self.backoff.delay(failures + 1, random), failures + 1)

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
        if isinstance(error, Gone):
            return Next(True, 0.0 if failures == 0 else self.backoff.delay(failures, random), failures + 1)
        wait = self.backoff.delay(failures + 1, random)
        refused = error is not None and not isinstance(error, Unreachable)
        relist = isinstance(error, NotFound) or (refused and failures + 1 >= _REFUSALS_BEFORE_LIST)
        return Next(relist, wait, failures + 1)
