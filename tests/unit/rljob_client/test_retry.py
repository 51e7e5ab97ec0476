"""What a failed call means: whether, and when, it is sent again, and what it may have done."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from rljob_client.backoff import Backoff, Failures
from rljob_client.errors import ApiError, Conflict, NoCredentials, Unreachable, error_of, refusal_of
from rljob_client.retry import NO_RETRY, PATIENT, RetryPolicy, attempted
from rljob_runtime.simulate.virtual_loop import run_virtual

STEADY = Backoff(1.0, 5.0, jitter=0.0)
HASTY = RetryPolicy(3, STEADY, longest_wait_seconds=30.0)
UNTIL_ITS_TIME_IS_UP = RetryPolicy(None, STEADY, longest_wait_seconds=300.0)


def refused(code: int, retry_after: str | None = None, body: bytes = b"") -> ApiError:
    return error_of("apply /x", refusal_of(code, body, retry_after))


def failed(message: str) -> bytes:
    return b'{"kind": "Status", "message": "' + message.encode() + b'"}'


UNSENT = Unreachable("apply /x", "cannot connect", sent=False)
CUT = Unreachable("apply /x", "cut")
NO_TOKEN = NoCredentials("apply /x", "cannot read the token")
DEAD_WEBHOOK = refused(500, body=failed("failed calling webhook a.b"))
BAD_FIELD = refused(500, body=failed("failed to create typed patch object: .x: field not declared in schema"))

# The error, how often its call was sent; seconds until it is sent again by whoever tries a few times, and by
# whoever has a time limit of its own (None: it is not); and whether a write is certain to have done nothing.
MEANINGS = [
    (UNSENT, 1, 1.0, 1.0, True),
    (CUT, 1, 1.0, 1.0, False),
    (CUT, 2, 2.0, 2.0, False),
    (CUT, 3, None, 4.0, False),
    (CUT, 1000, None, 5.0, False),
    (NO_TOKEN, 1, None, 1.0, True),
    (refused(401), 1, None, None, True),
    (refused(403), 1, None, None, True),
    (refused(404), 1, None, None, True),
    (refused(408), 1, 1.0, 1.0, False),
    (refused(409), 1, None, None, True),
    (refused(410), 1, None, None, True),
    (refused(422), 1, None, None, True),
    (refused(425), 1, 1.0, 1.0, True),
    (refused(429), 1, 1.0, 1.0, True),
    (refused(429, "4"), 1, 4.0, 4.0, True),
    (refused(429, "60"), 1, None, 60.0, True),
    (refused(500), 1, 1.0, 1.0, False),
    (BAD_FIELD, 1, None, None, True),
    (DEAD_WEBHOOK, 1, None, 1.0, True),
    (refused(503, "4"), 1, 4.0, 4.0, False),
    (refused(504), 2, 2.0, 2.0, False),
]


@pytest.mark.parametrize(("error", "sent", "hasty", "patient", "without_effect"), MEANINGS)
def test_what_a_failure_means(
    error: ApiError, sent: int, hasty: float | None, patient: float | None, without_effect: bool
) -> None:
    assert HASTY.wait(error, sent, Random(0)) == hasty
    assert UNTIL_ITS_TIME_IS_UP.wait(error, sent, Random(0)) == patient
    assert NO_RETRY.wait(error, sent, Random(0)) is None
    assert error.without_effect is without_effect


def test_back_off_doubles_up_to_its_cap() -> None:
    backoff = Backoff(base_seconds=1.0, cap_seconds=10.0, jitter=0.0)
    waits = [backoff.delay(failures, Random(0)) for failures in (1, 2, 3, 4, 5, 10_000)]
    assert waits == [1, 2, 4, 8, 10, 10]


def test_jitter_only_shortens() -> None:
    backoff, random = Backoff(base_seconds=8.0, cap_seconds=8.0, jitter=0.25), Random(0)
    delays = [backoff.delay(1, random) for _ in range(200)]
    assert 6.0 <= min(delays) < 6.2
    assert 7.8 < max(delays) <= 8.0


def test_a_row_of_failures_ends_with_success() -> None:
    failures = Failures(STEADY, Random(0))
    assert [failures.failed() for _ in range(4)] == [1, 2, 4, 5]
    failures.worked()
    assert failures.failed() == 1


class Calls:
    """Fails with each of `errors`, then gives the number of calls."""

    def __init__(self, *errors: ApiError) -> None:
        self.errors = list(errors)
        self.sent = 0

    async def send(self) -> int:
        self.sent += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.sent


def test_a_call_is_sent_again_until_it_works_and_each_failure_is_told() -> None:
    calls, told = Calls(CUT, DEAD_WEBHOOK, NO_TOKEN), list[ApiError]()

    async def main() -> float:
        assert await attempted(calls.send, UNTIL_ITS_TIME_IS_UP, Random(0), told.append) == 4
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 1 + 2 + 4
    assert told == [CUT, DEAD_WEBHOOK, NO_TOKEN]


@pytest.mark.parametrize(
    ("policy", "errors", "sent"),
    [(HASTY, [CUT] * 9, 3), (PATIENT, [CUT, refused(409)], 2), (NO_RETRY, [CUT], 1)],
    ids=["its attempts are used up", "it cannot help", "it is never sent again"],
)
def test_the_last_failure_is_raised(policy: RetryPolicy, errors: list[ApiError], sent: int) -> None:
    calls = Calls(*errors)
    with pytest.raises(type(errors[-1])):
        run_virtual(attempted(calls.send, policy, Random(0)))
    assert calls.sent == sent


def test_who_waits_for_ever_is_ended_by_the_time_limit() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await attempted(Calls(*[CUT] * 1000).send, PATIENT, Random(0))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 100


def test_a_conflict_is_no_matter_of_time_but_of_a_write_without_a_precondition() -> None:
    """The same call would meet the same precondition: whoever made it looks again first."""
    assert not Conflict.retryable
    assert UNTIL_ITS_TIME_IS_UP.wait(refused(409), 1, Random(0)) is None
    assert replace(UNTIL_ITS_TIME_IS_UP, conflicts=True).wait(refused(409), 1, Random(0)) == 1.0
