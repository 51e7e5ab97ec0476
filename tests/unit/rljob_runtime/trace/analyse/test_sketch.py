"""Distributions in constant memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.trace.analyse.sketch import ACCURACY, Sketch, exact_curve


@given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=300),
    st.sampled_from([0.0, 0.25, 0.5, 0.9, 0.99, 1.0]),
)
def test_quantiles_are_right_to_the_accuracy(values: list[float], share: float) -> None:
    exact = sorted(values)[int(share * (len(values) - 1) + 1e-9)]
    assert Sketch(values).quantile(share) == pytest.approx(exact, rel=2 * ACCURACY)


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=300))
def test_curves_rise_from_0_to_1(values: list[float]) -> None:
    for curve in (Sketch(values).curve(), exact_curve(values)):
        assert curve == sorted(curve)
        assert (curve[0][1], curve[-1][1]) == (0.0, 1.0)
        assert curve[-1][0] == max(values)
        assert len(curve) <= 303


def test_nothing_has_no_distribution() -> None:
    assert (Sketch().quantile(0.5), Sketch().mean, Sketch().curve(), exact_curve([])) == (0.0, 0.0, [], [])
