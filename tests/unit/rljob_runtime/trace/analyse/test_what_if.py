"""What the tail cost, and what would have saved it."""

import numpy as np
import pytest

from rljob_runtime.trace.analyse.requests import Attempt, Request
from rljob_runtime.trace.analyse.what_if import LIMITS, TailSums, seconds_with_limit, when_done


def request(uid: int, start: float, seconds: float, length: int) -> Request:
    return Request(uid, f"{uid}.0", 0, [Attempt("fast-0", start, seconds, length, "stop")], length)


@pytest.mark.parametrize(
    ("ends", "share", "when"),
    [
        ([4.0, 1.0, 3.0, 2.0, 10.0], 0.8, 4.0),
        ([4.0, 1.0, 3.0, 2.0, 10.0], 0.81, 10.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 1 / 1.2, 5.0),
        ([7.0], 0.5, 7.0),
        ([7.0, 8.0], 0.0, 7.0),
    ],
)
def test_when_a_share_was_done(ends, share, when):
    assert when_done(ends, share) == when


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        (1000, 20.0),
        # The longest ends at half its way; another one then ends last.
        (100, 12.0),
        (50, 7.0),
    ],
)
def test_a_limit_cuts_responses_where_they_had_so_many_tokens(limit, seconds):
    """Of 200, 100 and 60 tokens, over 20, 10 and 3 seconds, the second of which began 2 seconds later."""
    starts, took = np.array([0.0, 2.0, 0.0]), np.array([20.0, 10.0, 3.0])
    lengths = np.array([200.0, 100.0, 60.0])
    assert seconds_with_limit(starts, starts + took, lengths, limit) == pytest.approx(seconds)


def test_sums_over_steps():
    tail = TailSums()
    tail.add_step([request(uid, 10.0, float(uid + 1), 100 * (uid + 1)) for uid in range(4)])
    tail.add_step([request(9, 0.0, 4.0, 1000)])
    tail.add_step([])
    assert (tail.steps, tail.responses, tail.seconds, tail.longest) == (2, 5, 8.0, 1000)
    # All four of the one step, and the only one of the other.
    assert tail.done_share == 1.0
    assert tail.saved_by_over_sampling == 0.0


def test_over_sampling_gives_up_the_groups_that_end_last():
    """Groups of two: a group ends with its last response."""
    tail = TailSums()
    tail.add_step(
        [request(uid, 0.0, 1.0, 10) for uid in range(6)]
        + [request(uid, 0.0, 2.0 if uid < 5 else 10.0, 20) for uid in range(6)]
    )
    # Five of six groups are complete after 2 of 10 seconds.
    assert tail.saved_by_over_sampling == pytest.approx(0.8)
    assert tail.done_share == pytest.approx(0.2)


def test_the_limit_that_is_proposed_cuts_few():
    tail = TailSums()
    tail.add_step([request(uid, 0.0, 1.0, 100) for uid in range(99)] + [request(99, 0.0, 10.0, 1000)])
    found = [limit for limit, _, _ in tail.by_limit()]
    lowest = next(limit for limit in LIMITS if limit >= 100)
    limit, saved, cut = tail.proposed() or (0, 0.0, 0.0)
    assert (limit, cut) == (lowest, 0.01)
    assert saved == pytest.approx(1 - lowest / 1000)
    # Below 100 tokens all would be cut, and from 1000 on none.
    assert found[0] == lowest and found[-1] < 1000


def test_no_limit_where_all_are_as_long():
    tail = TailSums()
    assert tail.by_limit() == [] and tail.proposed() is None
    tail.add_step([request(uid, 0.0, 1.0, 100) for uid in range(10)])
    assert tail.proposed() is None
