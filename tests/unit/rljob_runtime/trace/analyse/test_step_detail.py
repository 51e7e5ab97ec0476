"""What is kept of single steps."""

import pytest

from rljob_runtime.trace.analyse.step_detail import BINS, SEGMENTS, DetailBook, merge, running
from rljob_runtime.trace.analyse.windows import (
    Window,
)
from tests.support.runtime.events import event, windows


def test_segments_are_joined_with_their_like_and_bounded() -> None:
    window = Window(0, 0.0, 100.0)
    events = [
        event("forward", 0, 10),
        event("forward", 10.05, 20),
        event("backward", 20, 30),
        event("get", 40, 40.01),
    ]
    assert merge(window, events) == [("forward", 0.0, 0.2), ("backward", 0.2, 0.3)]
    many = [event("reward", index * 0.2, index * 0.2 + 0.07) for index in range(500)]
    assert len(merge(window, many)) == SEGMENTS


def test_running_requests_are_counted_per_part_of_the_window() -> None:
    window = Window(0, 0.0, float(BINS))
    found = running(window, [event("generate", 0, 2), event("generate", 1, 1.5), event("generate", -5, 1000)])
    assert found[:3] == pytest.approx([2.0, 2.5, 1.0]) and found[-1] == pytest.approx(1.0)
    assert running(window, []) == []


def test_a_long_event_appears_in_every_step_that_it_runs_through() -> None:
    book = DetailBook(windows(10, 10, 10), [0, 1, 2])
    book.add_step(2, [event("generate", 5.0, 25.0)], [])
    busy = [detail.time_lines[0].running for detail in book.details()]
    assert [sum(row) / BINS for row in busy] == pytest.approx([0.5, 1.0, 0.5])
