"""One engine's requests, packed into rows."""

import pytest

from rljob_runtime.trace.analyse.requests import Attempt, Request
from rljob_runtime.trace.analyse.worker_stays import ROWS, STAYS, Stay, last_worker_stays, pack


def stay(start: float, end: float) -> Stay:
    return Stay(f"{start:g}-{end:g}", start, end, 1, "stop")


@pytest.mark.parametrize(
    ("times", "rows"),
    [
        ([], []),
        ([(0, 1), (1, 2), (2, 3)], [["0-1", "1-2", "2-3"]]),
        ([(0, 3), (1, 2), (2, 5), (3, 4)], [["0-3", "3-4"], ["1-2", "2-5"]]),
        ([(1, 2), (0, 5)], [["0-5"], ["1-2"]]),
    ],
)
def test_rows_hold_what_came_one_after_the_other(times, rows):
    assert [[each.name for each in row] for row in pack([stay(*each) for each in times])] == rows


def request(uid: int, *attempts: Attempt) -> Request:
    return Request(uid, f"{uid}.0", 0, list(attempts), 10)


def test_the_engine_is_the_one_on_which_the_last_response_ended():
    found = last_worker_stays(
        [
            request(1, Attempt("fast-0", 0, 9, 5, "stop")),
            request(2, Attempt("heavy-0", 0, 1, 5, "abort"), Attempt("fast-0", 2, 3, 5, "stop")),
            request(3, Attempt("fast-0", 0, 2, 5, "abort"), Attempt("heavy-0", 3, 8, 5, "length")),
        ]
    )
    assert found is not None
    assert (found.worker, found.left_out) == ("heavy-0", 0)
    assert [[(each.name, each.finish) for each in row] for row in found.rows] == [
        [("2.0", "abort"), ("3.0", "length")]
    ]
    assert last_worker_stays([]) is None


def test_of_too_many_the_longest_are_kept():
    """All at once, each in a row of its own."""
    many = [request(uid, Attempt("fast-0", 0, 1 + uid, 5, "stop")) for uid in range(STAYS + 10)]
    found = last_worker_stays(many)
    assert found is not None
    assert (len(found.rows), found.left_out) == (ROWS, STAYS + 10 - ROWS)
