"""What the bench of full engines makes of an engine core's steps."""

import numpy as np
import pytest

from tests.bench.engine_refill import residual
from tests.bench.engine_refill_rows import Phase, phase, rows, together
from tests.bench.refill_clock import Step, Taken, taken

STEPS = [Step(1.0, 8, 0), Step(1.5, 8, 0), Step(2.5, 8, 130), Step(3.0, 7, 0), Step(3.5, 8, 0)]
WAITS = [(1.0, 9.0), (2.5, 0.25)]


@pytest.mark.parametrize(
    ("since", "full", "expected"),
    [
        pytest.param(0.0, None, Phase(31, 2.5, [0.5, 1.0, 0.5, 0.5], 1, [9.0, 0.25]), id="all"),
        pytest.param(1.2, None, Phase(23, 2.0, [1.0, 0.5, 0.5], 1, [0.25]), id="from its settling on"),
        pytest.param(0.0, 8, Phase(16, 1.0, [0.5, 0.5], 0, [9.0, 0.25]), id="bare"),
        pytest.param(9.0, None, Phase(0, 0.0, [], 0, []), id="nothing"),
    ],
)
def test_some_seconds_of_an_engine(since: float, full: int | None, expected: Phase) -> None:
    assert phase(Taken(STEPS, WAITS, None), since, full) == expected


def test_times_between_phases_are_of_none() -> None:
    one, other = phase(Taken(STEPS[:2], WAITS, None), 0.0), phase(Taken(STEPS[3:], [], None), 0.0)
    assert together([one, other]) == Phase(16, 1.0, [0.5, 0.5], 0, [9.0, 0.25])


def test_what_is_with_the_gate_stands_beside_what_is_without() -> None:
    off = Phase(100, 10.0, [0.5, 0.5, 2.0], 3, [1.0, 3.0])
    on = Phase(300, 10.0, [0.25, 0.25, 1.0], 1, [5.0])
    bare = Phase(400, 10.0, [0.25], 0, [])
    found = rows("8 in flight", bare, [off], [on])
    assert [(each.name, each.value, each.unit, each.baseline) for each in found] == [
        ("8 in flight, nothing replaced: tokens", 40.0, "tokens/s", None),
        ("8 in flight, nothing replaced: between two steps: median", 250.0, "ms", None),
        ("8 in flight, nothing replaced: between two steps: mean", 250.0, "ms", None),
        ("8 in flight, gate off: tokens", 10.0, "tokens/s", None),
        ("8 in flight, gate off: between two steps: median", 500.0, "ms", None),
        ("8 in flight, gate off: between two steps: mean", 1000.0, "ms", None),
        ("8 in flight, gate off: steps with prompts", 1.0, "share", None),
        ("8 in flight, gate off: wait for the first token: mean", 2000.0, "ms", None),
        ("8 in flight, gate on: tokens", 30.0, "tokens/s", 10.0),
        ("8 in flight, gate on: between two steps: median", 250.0, "ms", 500.0),
        ("8 in flight, gate on: between two steps: mean", 500.0, "ms", 1000.0),
        ("8 in flight, gate on: steps with prompts", pytest.approx(1 / 3), "share", 1.0),
        ("8 in flight, gate on: wait for the first token: mean", 5000.0, "ms", 2000.0),
    ]


def test_phases_that_did_not_come_about_have_no_rows() -> None:
    off = Phase(100, 10.0, [0.5], 0, [])
    found = rows("8 in flight", together([]), [off], [])
    assert {each.name.split(":")[0] for each in found} == {"8 in flight, gate off"}


def test_it_is_read_as_the_core_sent_it() -> None:
    sent = [[[1.0, 8, 0]], [[1.0, 0.5]], [0.01, 0.02]]
    assert taken(sent) == Taken([Step(1.0, 8, 0)], [(1.0, 0.5)], (0.01, 0.02))
    assert taken([[], [], None]) == Taken([], [], None)


def test_an_engine_that_was_full_for_ever_has_met_long_responses_half_way() -> None:
    lengths = np.array([10, 10, 10, 970])
    left = residual(lengths, 20_000, np.random.default_rng(1))
    assert left.min() >= 1 and left.max() <= 970
    # E[length²] / 2 E[length], and half a token as they are whole.
    assert left.mean() == pytest.approx((np.square(lengths).mean() / lengths.mean() + 1) / 2, rel=0.02)
