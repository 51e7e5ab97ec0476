"""How many bins items need at least."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.parallel.first_fit import fewest_bins, first_fit


@pytest.mark.parametrize(
    ("sizes", "cap", "expected"),
    [
        pytest.param([], 10, 0, id="nothing"),
        pytest.param([0, 0], 10, 0, id="items without a size"),
        pytest.param([5] * 8, 10, 4, id="two halves to a bin"),
        pytest.param([6] * 8, 10, 8, id="one to a bin"),
        pytest.param([4] * 8, 10, 4, id="two to a bin, not two and a half"),
        pytest.param([3] * 9, 10, 3, id="three to a bin"),
        pytest.param([6] * 4 + [1] * 8, 10, 4, id="short ones beside"),
        pytest.param([2] * 20, 10, 4, id="what the sum asks for"),
    ],
)
def test_fewest_bins(sizes: list[int], cap: int, expected: int) -> None:
    assert fewest_bins(np.array(sizes, dtype=np.int64), cap) == expected


@given(st.integers(1, 12), st.lists(st.lists(st.integers(1, 12), max_size=6), max_size=6))
def test_never_more_than_hold_them(cap: int, bins: list[list[int]]) -> None:
    """Bins filled one by one, up to the cap, are enough for what is in them."""
    packed = [[size for end, size in zip(np.cumsum(each), each, strict=True) if end <= cap] for each in bins]
    sizes = np.array([size for each in packed for size in each], dtype=np.int64)
    assert fewest_bins(sizes, cap) <= sum(1 for each in packed if each)
    assert fewest_bins(sizes, cap) <= (first_fit(sizes, cap).max(initial=-1) + 1)
