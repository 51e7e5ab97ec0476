"""Version spans from what engines record and report."""

from dataclasses import dataclass

import pytest

from rljob_runtime.engines.spans import SpanRecorder, spans_from_report
from rljob_runtime.samples import Span


@dataclass
class Reported:
    version: str
    start: int
    end: int


@pytest.mark.parametrize(
    ("marks", "length", "expected"),
    [
        ([], 0, ()),
        ([], 5, (Span(3, 0, 5),)),
        ([(4, 2)], 5, (Span(3, 0, 2), Span(4, 2, 5))),
        ([(4, 0)], 5, (Span(4, 0, 5),)),
        ([(4, 5)], 5, (Span(3, 0, 5),)),
        ([(4, 2), (5, 2)], 5, (Span(3, 0, 2), Span(5, 2, 5))),
        ([(4, 2), (5, 4)], 5, (Span(3, 0, 2), Span(4, 2, 4), Span(5, 4, 5))),
        ([(3, 2)], 5, (Span(3, 0, 5),)),
        ([(4, 2)], 0, ()),
    ],
)
def test_recorder(marks: list[tuple[int, int]], length: int, expected: tuple[Span, ...]) -> None:
    recorder = SpanRecorder(3)
    for version, count in marks:
        recorder.mark(version, count)
    assert recorder.spans(length) == expected


def test_marks_go_forward() -> None:
    recorder = SpanRecorder(0)
    recorder.mark(1, 4)
    with pytest.raises(ValueError, match="mark at token 3 after a mark at token 4"):
        recorder.mark(2, 3)


@pytest.mark.parametrize(
    ("report", "length", "expected"),
    [
        ([], 0, ()),
        (None, 0, ()),
        ([Reported("7", 0, 4)], 4, (Span(7, 0, 4),)),
        ([Reported("7", 0, 4), Reported("9", 4, 6)], 6, (Span(7, 0, 4), Span(9, 4, 6))),
        ([Reported("7", 0, 4), Reported("9", 4, 6)], 5, (Span(7, 0, 4), Span(9, 4, 5))),
        ([Reported("7", 0, 4), Reported("9", 4, 6)], 3, (Span(7, 0, 3),)),
        ([Reported("7", 0, 2), Reported("7", 2, 6)], 6, (Span(7, 0, 6),)),
    ],
)
def test_report(report: list[Reported] | None, length: int, expected: tuple[Span, ...]) -> None:
    assert spans_from_report(report, length) == expected


@pytest.mark.parametrize(
    ("report", "length", "message"),
    [
        (None, 2, "cover 0 of 2"),
        ([Reported("7", 0, 4)], 5, "cover 4 of 5"),
        ([Reported("7", 1, 4)], 4, "not contiguous at token 0"),
        ([Reported("7", 0, 2), Reported("8", 3, 4)], 4, "not contiguous at token 2"),
        ([Reported("default", 0, 2)], 2, "invalid literal"),
    ],
)
def test_a_report_with_holes_is_an_error(report: list[Reported] | None, length: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spans_from_report(report, length)
