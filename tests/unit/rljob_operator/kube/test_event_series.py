"""Repeats are counted, floods are cut."""

import pytest

from rljob_operator.kube.event_series import SeriesBook, SeriesRules

RULES = SeriesRules(series_gap=360.0, burst=3, refill=300.0)


@pytest.mark.parametrize(
    ("happenings", "verdicts"),
    [
        # (seconds, object, what) each
        ([(0, "job", "a"), (1, "job", "a"), (300, "job", "a")], ["create", "repeat", "repeat"]),
        ([(0, "job", "a"), (361, "job", "a")], ["create", "create"]),
        ([(0, "job", "a"), (350, "job", "a"), (700, "job", "a")], ["create", "repeat", "repeat"]),
        ([(0, "job", "a"), (0, "job", "b"), (0, "other", "a")], ["create", "create", "create"]),
        ([(0, "job", name) for name in "abcd"], ["create", "create", "create", "drop"]),
        ([(0, "job", name) for name in "abc"] + [(0, "job", "a")], ["create", "create", "create", "repeat"]),
        ([(0, "job", name) for name in "abcd"] + [(0, "other", "a")], ["create"] * 3 + ["drop", "create"]),
        (
            [(0, "job", name) for name in "abc"] + [(299, "job", "d"), (301, "job", "d")],
            ["create"] * 3 + ["drop", "create"],
        ),
    ],
)
def test_verdicts(happenings, verdicts):
    book = SeriesBook(RULES)
    assert [book.happened(about, what, "name", now)[0] for now, about, what in happenings] == verdicts


def test_a_repeat_is_counted_in_the_event_that_is_there():
    book = SeriesBook(RULES)
    book.happened("job", "a", "first", 0.0)
    _, series = book.happened("job", "a", "second", 5.0)
    assert (series.name, series.count, series.last) == ("first", 2, 5.0)


def test_what_is_forgotten_begins_anew():
    book = SeriesBook(RULES)
    book.happened("job", "a", "first", 0.0)
    book.forget("job", "a")
    verdict, series = book.happened("job", "a", "second", 5.0)
    assert (verdict, series.name, series.count) == ("create", "second", 1)


def test_memory_is_bounded():
    book = SeriesBook(RULES)
    for number in range(10_000):
        book.happened(f"job-{number}", "a", "name", 0.0)
    assert len(book._series) == len(book._allowances) == 4096
    assert book.happened("job-9999", "a", "name", 1.0)[0] == "repeat"
    assert book.happened("job-0", "a", "name", 1.0)[0] == "create"
