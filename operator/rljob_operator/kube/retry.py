"""Whether and when a failed call is sent again. Pure.

Sending again is safe for every call of this package: apply, merge patch and delete mean the same twice, a
precondition turns a repeated write into a `Conflict` or `NotFound`, and created objects have fixed names.
"""

from dataclasses import dataclass
from random import Random

from rljob_client.errors import ApiError
from rljob_operator.kube.backoff import Backoff

_BACKOFF = Backoff(base_seconds=0.25, cap_seconds=5.0)


@dataclass(frozen=True)
class RetryPolicy:
    """When to try again within one call; what it gives up, the caller retries on its own terms."""

    attempts: int = 4
    """Times that a call is sent at most."""
    backoff: Backoff = _BACKOFF
    longest_wait_seconds: float = 10.0
    """A server that asks to be left alone for longer is obeyed by giving up."""

    def wait(self, error: ApiError, sent: int, random: Random) -> float | None:
        """Seconds to wait before the call, `sent` times sent, is sent again; None to give up."""
        if not error.retryable or sent >= self.attempts:
            return None
        asked = error.retry_after or 0.0
        if asked > self.longest_wait_seconds:
            return None
        return max(asked, self.backoff.delay(sent, random))


NO_RETRY = RetryPolicy(attempts=1)
