"""How far lengths spread is found of lengths that were drawn, whatever part of them was cut off."""

import numpy as np
import pytest

from rljob_runtime.simulate.workload import LengthModel
from rljob_runtime.trace.forecast.length_fit import fit_deviations


@pytest.mark.parametrize(
    ("mean", "between", "within", "samples", "at_cap"),
    [
        (300, 0.8, 0.5, 8, (0, 0.001)),
        (2000, 0.6, 0.4, 8, (0.001, 0.03)),
        (4000, 1.0, 0.6, 8, (0.18, 0.24)),
        (5000, 1.5, 0.5, 8, (0.35, 0.43)),
        (6500, 0.8, 0.8, 4, (0.5, 0.7)),
        (4000, 0.1, 1.0, 8, (0.1, 0.3)),
        (4000, 1.0, 0.05, 16, (0.1, 0.3)),
    ],
)
def test_deviations_are_those_by_which_lengths_were_drawn(
    mean: float, between: float, within: float, samples: int, at_cap: tuple[float, float]
) -> None:
    cap = 8192
    tokens = LengthModel(mean, cap, between, within).draw(4000, samples, 0).lengths.astype(np.int32)
    assert at_cap[0] <= (tokens == cap).mean() <= at_cap[1]
    found = fit_deviations(tokens, cap)
    assert found.between == pytest.approx(between, rel=0.08, abs=0.05)
    assert found.within == pytest.approx(within, rel=0.08)


def test_all_that_spreads_is_between_prompts_with_one_response() -> None:
    tokens = LengthModel(4000, 8192, 0.8, 0.6).draw(4000, 1, 0).lengths.astype(np.int32)
    found = fit_deviations(tokens, 8192)
    assert found.within == 0
    assert found.between == pytest.approx(1.0, rel=0.06)


@pytest.mark.parametrize("tokens", [[[8, 8], [8, 8]], [[5, 5], [5, 5]], [[8, 8], [5, 5]], [[1, 8], [8, 1]]])
def test_few_lengths_give_finite_deviations(tokens: list[list[int]]) -> None:
    found = fit_deviations(np.array(tokens, np.int32), 8)
    assert 0 <= found.between < 100 and 0 <= found.within < 100


def test_lengths_that_all_were_cut_off_do_not_differ() -> None:
    found = fit_deviations(np.full((3, 2), 8, np.int32), 8)
    assert (found.between, found.within) == (0, 0)
