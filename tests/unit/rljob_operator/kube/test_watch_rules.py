"""What follows a list or a watch that ended."""

from random import Random

import pytest

from rljob_client.backoff import Backoff
from rljob_client.errors import (
    Forbidden,
    Gone,
    NoSuchResource,
    Refusal,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from rljob_operator.kube.watch_rules import Next, WatchRules, went_back

RULES = WatchRules(Backoff(1.0, 8.0, jitter=0.0), absent_seconds=15.0)
BUSY = TooManyRequests("watch", "too many requests", Refusal(429))
BUSY_FOR_A_MINUTE = TooManyRequests("watch", "too many requests", Refusal(429, retry_after=60.0))
BUSY_FOR_A_DAY = TooManyRequests("watch", "too many requests", Refusal(429, retry_after=86400.0))
CUT, GONE, REFUSED = Unreachable("watch", "cut"), Gone("watch", "too old"), ServerError("watch", "why not")


@pytest.mark.parametrize(
    ("error", "lasted", "failures", "expected"),
    [
        # The server ended it in time: watch on at once.
        (None, 270.0, 0, Next(relist=False, wait_seconds=0.0, failures=0)),
        (None, 270.0, 5, Next(relist=False, wait_seconds=0.0, failures=0)),
        # The server ends watches as soon as they begin: do not hammer it.
        (None, 0.1, 0, Next(relist=False, wait_seconds=1.0, failures=1)),
        (None, 0.1, 2, Next(relist=False, wait_seconds=4.0, failures=3)),
        # Cut off: go on from the same point, however long it takes.
        (CUT, 100.0, 7, Next(relist=False, wait_seconds=1.0, failures=1)),
        (CUT, 0.1, 1, Next(relist=False, wait_seconds=2.0, failures=2)),
        (CUT, 0.1, 50, Next(relist=False, wait_seconds=8.0, failures=51)),
        # The point is too old: list at once, but not in a tight loop.
        (GONE, 0.1, 0, Next(relist=True, wait_seconds=0.0, failures=1)),
        (GONE, 0.1, 1, Next(relist=True, wait_seconds=1.0, failures=2)),
        # Refused again and again: the point may be one that never was.
        (REFUSED, 0.1, 0, Next(relist=False, wait_seconds=1.0, failures=1)),
        (REFUSED, 0.1, 2, Next(relist=True, wait_seconds=4.0, failures=3)),
        # An API server that has too much to do is not asked for everything in addition, nor before it wants.
        (BUSY, 0.1, 2, Next(relist=False, wait_seconds=4.0, failures=3)),
        (BUSY_FOR_A_MINUTE, 0.1, 0, Next(relist=False, wait_seconds=60.0, failures=1)),
        (BUSY_FOR_A_DAY, 0.1, 0, Next(relist=False, wait_seconds=300.0, failures=1)),
        # The type was removed: the list finds that out.
        (NoSuchResource("watch", "no"), 0.1, 0, Next(relist=True, wait_seconds=1.0, failures=1)),
    ],
)
def test_after_a_watch(error, lasted, failures, expected):
    assert RULES.after_watch(error, lasted, failures, Random(0)) == expected


@pytest.mark.parametrize(
    ("error", "failures", "expected"),
    [
        (Unreachable("list", "cut"), 0, Next(True, 1.0, 1)),
        (Forbidden("list", "no"), 2, Next(True, 4.0, 3)),
        (NoSuchResource("list", "no"), 0, Next(True, 15.0, 0)),
        (BUSY, 1, Next(True, 2.0, 2)),
        (BUSY_FOR_A_MINUTE, 1, Next(True, 60.0, 2)),
    ],
)
def test_after_a_list(error, failures, expected):
    assert RULES.after_list(error, failures, Random(0)) == expected


@pytest.mark.parametrize(
    ("denials", "served", "removed"), [(1, False, True), (1, True, False), (2, True, False), (3, True, True)]
)
def test_a_type_that_was_served_is_removed_when_it_is_denied_several_times(denials, served, removed):
    assert RULES.removed(denials, served) == removed


def test_a_denial_that_is_not_believed_is_followed_by_another_look():
    after = RULES.after_list(NoSuchResource("list", "no"), 4, Random(0), removed=False)
    assert after == Next(True, RULES.denial_seconds, 4)


@pytest.mark.parametrize(
    ("known", "newest", "back"), [("0", "5", False), ("9", "9", False), ("9", "10", False), ("10", "9", True)]
)
def test_a_server_that_has_forgotten_something(known, newest, back):
    assert went_back(known, newest) == back
