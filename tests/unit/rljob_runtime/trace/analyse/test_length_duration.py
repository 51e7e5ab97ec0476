"""How long responses took, by their lengths."""

import pytest

from rljob_runtime.trace.analyse.length_duration import POINTS, LengthDuration
from rljob_runtime.trace.analyse.requests import Attempt, Request


def of(*pairs: tuple[int, float]) -> LengthDuration:
    found = LengthDuration()
    found.add([Request(0, "0.0", 0, [Attempt("fast-0", 0.0, took, n, "stop")], n) for n, took in pairs])
    return found


@pytest.mark.parametrize(
    ("pairs", "line"),
    [
        ([(10, 2.0), (20, 3.0), (30, 4.0)], (1.0, 0.1, 1.0)),
        ([(10, 1.0), (20, 3.0), (30, 2.0)], (1.0, 0.05, 0.25)),
        ([(10, 1.0), (20, 2.0)], None),
        ([(10, 1.0)] * 9, None),
        ([(10, 1.0), (10, 2.0), (10, 3.0)], None),
        ([(10, 1.0), (20, 1.0), (30, 1.0)], None),
    ],
)
def test_the_line_through_all(pairs, line):
    assert of(*pairs).line() == (None if line is None else pytest.approx(line))


def test_points_are_thinned_evenly():
    lengths = of(*((n, n / 10) for n in range(1, 3 * POINTS)))
    assert POINTS // 2 <= len(lengths.points) <= POINTS
    assert lengths.every == 4
    assert [n for n, _ in lengths.points] == list(range(1, 3 * POINTS, 4))
    assert lengths.line() == pytest.approx((0.0, 0.1, 1.0), abs=1e-6)
