"""Where a request's time on its engine went, by what happened to it and when."""

import pytest

from rljob_runtime.engines.stays import Pauses, timing_of
from rljob_runtime.samples import Timing


def pauses(*times: tuple[float, float], oldest: float = 0.0) -> Pauses:
    found = Pauses()
    for start, end in times:
        found.begin(start)
        found.end(end, oldest)
    return found


@pytest.mark.parametrize(
    ("marks", "stood_still", "expected"),
    [
        ([], [], Timing(queued=10)),
        ([("scheduled", 1)], [], Timing(queued=1, prefill=9)),
        ([("scheduled", 1), ("token", 3)], [], Timing(queued=1, prefill=2, decode=7)),
        # The engine stood still while it decoded, and computed its KV cache anew: no pre-emption.
        (
            [("scheduled", 1), ("token", 2), ("preempted", 4.5), ("scheduled", 7), ("token", 8)],
            [(4, 6)],
            Timing(queued=2, prefill=1, decode=4, paused=2, recomputed=1),
        ),
        # The same without a pause: its room was given to others.
        (
            [("scheduled", 1), ("token", 2), ("preempted", 4), ("scheduled", 7), ("token", 8)],
            [],
            Timing(queued=1, prefill=1, decode=4, preempted=3, recomputed=1, preemptions=1),
        ),
        # Before it had a token.
        (
            [("scheduled", 1), ("preempted", 2), ("scheduled", 5), ("token", 9)],
            [],
            Timing(queued=1, prefill=1, preempted=3, recomputed=4, decode=1, preemptions=1),
        ),
        # It waited for an engine that stood still from before its submit.
        ([("scheduled", 6), ("token", 7)], [(-2, 5)], Timing(paused=5, queued=1, prefill=1, decode=3)),
        # The engine core knew of it before this process did, and of its end later.
        ([("scheduled", -1), ("token", 12)], [], Timing(prefill=10)),
    ],
)  # fmt: skip
def test_timing(marks, stood_still, expected):
    found = timing_of(0.0, marks, 10.0, pauses(*stood_still))
    assert found == expected
    whole = found.queued + found.prefill + found.decode + found.paused + found.preempted + found.recomputed
    assert whole == pytest.approx(10.0)


def test_a_pause_that_has_not_ended():
    found = pauses((1, 2))
    found.begin(8.0)
    found.begin(9.0)
    assert timing_of(0.0, [("scheduled", 0.0), ("token", 0.0)], 10.0, found) == Timing(decode=7, paused=3)
    assert found.cover(100.0) and not found.cover(7.9)


def test_what_stood_still_between_two_steps_is_a_pause() -> None:
    found = Pauses()
    found.add(4.0, 6.0, oldest=0.0)
    assert (found.within(0, 10), found.cover(5.0), found.cover(7.0)) == (2, True, False)
    found.add(8.0, 9.0, oldest=7.0)
    assert found.within(0, 10) == 1


def test_pauses_before_the_oldest_request_are_forgotten():
    found = pauses((1, 2), (3, 4), oldest=2.5)
    assert (found.within(0, 10), found.cover(1.5), found.cover(3.5)) == (1, False, True)
    found.end(5.0, 5.0)
    assert found.within(0, 10) == 0


def test_a_request_that_ended_before_it_began_took_no_time():
    """As where it is aborted in the same turn of the loop, by a coarse clock."""
    assert timing_of(5.0, [], 5.0, Pauses()) == Timing()
