"""What the time of requests was made of, from their events."""

import pytest

from rljob_runtime.trace.analyse.request_phases import PhaseBook, told_phases
from rljob_runtime.trace.report.section_inside import phase_sentences
from tests.support.runtime.events import event


def book(*events: object) -> PhaseBook:
    found = PhaseBook()
    found.add_step(3, events)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, {}),
        ({"phases": "all"}, {}),
        ({"phases": {"decode": 2, "queued": "long"}}, {}),
        ({"phases": {"decode": 2, "preemptions": 3}}, {"decode": 2, "preemptions": 3}),
    ],
)
def test_phases_of_an_event(extra, expected):
    assert told_phases(extra) == expected


def test_shares_are_of_the_stays_that_tell():
    found = book(
        event("generate", 0, 10, phases={"queued": 1.0, "decode": 7.0}),
        event("generate", 0, 10, "heavy-0", phases={"decode": 10.0, "preempted": 0.0, "preemptions": 2}),
        event("generate", 0, 99, finish="cancelled"),
    )
    assert (found.whole.stays, found.whole.preemptions) == (2, 2)
    assert found.whole.share("decode") == pytest.approx(0.85)
    assert found.whole.rest == pytest.approx(0.1)
    assert found.by_pool["fast"].share("queued") == pytest.approx(0.1)
    assert list(found.by_step) == [3]


def test_sentences():
    found = book(
        event("generate", 0, 10, phases={"queued": 1.0, "decode": 6.0, "preempted": 2.0, "preemptions": 2}),
        event("reward", 0, 3, "driver", uid=1, waiting=2.0, running=0.5, spread=4.0),
        event("reward", 0, 3, "driver", uid=2, teacher=3.0),
    )
    assert phase_sentences(found) == [
        "Of the time that requests were on engines, 60 % was decode, 20 % preempted, 10 % queued.",
        "Requests lost their KV cache for want of room 2 times, which cost 20 % of that time in waiting "
        "alone.",
        "A group's last reward took 500 ms on average, after 2 s of waiting for a worker.",
        "The teacher's server had answered for all responses of a group 3 s after the last of them was "
        "complete, on average, and 3 s in one group of twenty or more.",
        "From a group's first complete response to its last it took 4 s on average, and 4 s in one group of "
        "twenty or more.",
    ]
