"""Non-negative least squares."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.least_squares import fit_nonnegative


def test_constants_that_made_the_measurements_are_found_again() -> None:
    random = np.random.default_rng(0)
    # Steps, requests and KV tokens: scales as far apart as in a real run.
    features = np.column_stack(
        [np.ones(200), random.integers(1, 256, 200), random.integers(1e3, 1e6, 200)]
    ).astype(float)
    truth = np.array([0.01, 2e-5, 4e-8])
    fit = fit_nonnegative(features, features @ truth)
    assert fit.coefficients == pytest.approx(truth, rel=1e-6)
    assert fit.r_squared == pytest.approx(1.0)


def test_what_would_be_negative_is_0() -> None:
    features = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    fit = fit_nonnegative(features, np.array([3.0, 2.0, 1.0]))
    assert fit.coefficients == pytest.approx([2.0, 0.0])
    assert fit.r_squared == pytest.approx(0.0)


def test_a_column_of_zeros_gets_0() -> None:
    fit = fit_nonnegative(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([2.0, 4.0]))
    assert fit.coefficients == pytest.approx([2.0, 0.0])


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 3 measurements \(found 2\)"):
        fit_nonnegative(np.ones((2, 3)), np.ones(2))


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_the_optimum_is_the_optimum(seed: int, size: int) -> None:
    """Karush, Kuhn and Tucker: no coefficient is negative, the error's slope is 0 in those above 0, and in no
    direction of growth does it fall."""
    random = np.random.default_rng(seed)
    features, targets = random.normal(size=(size + 6, size)), random.normal(size=size + 6)
    found = fit_nonnegative(features, targets).coefficients
    slope = features.T @ (targets - features @ found)
    assert (found >= 0).all()
    assert slope[found > 0] == pytest.approx(0, abs=1e-7)
    assert (slope < 1e-7).all()
