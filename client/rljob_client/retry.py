"""Whether and when a failed call is sent again.

Sending again is safe for every call of this package: apply, merge patch and delete mean the same twice, a
precondition turns a repeated write into a `Conflict` or `NotFound`, and created objects have fixed names.

Guarantees: `RetryPolicy` is pure; `attempted` sends one call at a time, and ends with its result, with the
error of its last attempt, or with whatever cancels it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import TypeVar

from rljob_client.backoff import Backoff
from rljob_client.errors import ApiError, Conflict, NoCredentials, WebhookFailed

AnswerT = TypeVar("AnswerT")

_BACKOFF = Backoff(base_seconds=0.25, cap_seconds=5.0)
_LONGEST_ASKED_SECONDS = 300.0
"""A server that asks to be left alone for longer is asked again after this long: what it holds is needed."""
PATIENT_BACKOFF = Backoff(base_seconds=0.5, cap_seconds=30.0)
"""Of whoever asks for as long as it lives."""


@dataclass(frozen=True)
class RetryPolicy:
    """When to try again within one call; what it gives up, the caller retries on its own terms."""

    attempts: int | None = 4
    """Times that a call is sent at most; None: the caller sets a time limit instead."""
    backoff: Backoff = _BACKOFF
    longest_wait_seconds: float = 10.0
    """A server that asks to be left alone for longer is obeyed by giving up."""
    conflicts: bool = False
    """Whether a conflict may pass too: that of a write without a precondition on the version, which met
    another write of the same moment."""

    def wait(self, error: ApiError, sent: int, random: Random) -> float | None:
        """Seconds to wait before the call, `sent` times sent, is sent again; None to give up."""
        if not self._may_pass(error) or (self.attempts is not None and sent >= self.attempts):
            return None
        asked = error.retry_after or 0.0
        if asked > self.longest_wait_seconds:
            return None
        return max(asked, self.backoff.delay(sent, random))

    def _may_pass(self, error: ApiError) -> bool:
        if isinstance(error, Conflict):
            return self.conflicts
        # Only for whoever has the time: a token's file may be there later, and the API server waits up to
        # 30 s for a webhook before each answer.
        if isinstance(error, NoCredentials | WebhookFailed):
            return self.attempts is None
        return error.retryable


def asked_seconds(error: Exception | None) -> float:
    """How long the server wants to be left alone, for whoever tries again in any case; 0: it did not say."""
    asked = error.retry_after if isinstance(error, ApiError) else None
    return min(asked or 0.0, _LONGEST_ASKED_SECONDS)


NO_RETRY = RetryPolicy(attempts=1)
PATIENT = RetryPolicy(attempts=None, backoff=PATIENT_BACKOFF, longest_wait_seconds=inf)
"""Within a time limit of the caller's."""


async def attempted(
    send: Callable[[], Awaitable[AnswerT]],
    policy: RetryPolicy,
    random: Random,
    failed: Callable[[ApiError], None] | None = None,
) -> AnswerT:
    """What `send` gives, tried as often as `policy` says. Raises the last `ApiError`; `failed` is told of
    each one before."""
    sent = 0
    while True:
        try:
            return await send()
        except ApiError as error:
            sent += 1
            wait = policy.wait(error, sent, random)
            if wait is None:
                raise
            if failed is not None:
                failed(error)
        await asyncio.sleep(wait)
