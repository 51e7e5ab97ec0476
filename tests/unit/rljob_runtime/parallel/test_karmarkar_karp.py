"""Karmarkar–Karp on examples that can be followed by hand."""

import numpy as np
import pytest

from rljob_runtime.parallel.karmarkar_karp import karmarkar_karp
from rljob_runtime.parallel.loads import integer_costs, loads_of, members_of

SIX = [100, 900, 50, 950, 400, 600]
"""Six responses of very different lengths, 3,000 tokens in all."""
CASES = [
    # costs, bins, equal, items of each bin
    pytest.param(SIX, 2, False, [(0, 2, 3, 4), (1, 5)], id="six samples, two micro-batches of 2,000 tokens"),
    pytest.param(SIX, 2, True, [(1, 2, 5), (0, 3, 4)], id="six samples, three for each of two ranks"),
    pytest.param(SIX, 3, False, [(4, 5), (2, 3), (0, 1)], id="six samples, three ranks"),
    pytest.param(SIX, 3, True, [(4, 5), (2, 3), (0, 1)], id="six samples, two for each of three ranks"),
    pytest.param([8, 7, 6, 5, 4], 2, False, [(1, 3, 4), (0, 2)], id="a difference that no join removes"),
    pytest.param([8, 7, 6, 5, 4], 3, False, [(1, 4), (2, 3), (0,)], id="three bins"),
    pytest.param([5, 5, 5, 5], 2, True, [(0, 3), (1, 2)], id="all alike"),
    pytest.param([3, 1, 2], 1, False, [(0, 1, 2)], id="one bin"),
    pytest.param([7, 3], 4, False, [(0,), (1,), (), ()], id="fewer items than bins"),
    pytest.param([7, 3], 4, True, [(0,), (1,), (), ()], id="fewer items than bins, equal sizes"),
    pytest.param([9, 5, 4, 1, 1], 2, True, [(1, 2, 3), (0, 4)], id="sizes that differ by one"),
    pytest.param([0, 0, 0], 2, True, [(2,), (0, 1)], id="items of cost 0"),
    pytest.param([], 3, True, [(), (), ()], id="no items"),
    pytest.param([0.8, 0.7, 0.6, 0.5, 0.4], 2, False, [(1, 3, 4), (0, 2)], id="fractions"),
]


@pytest.mark.parametrize(("costs", "bins", "equal", "expected"), CASES)
def test_partition(costs: list[int], bins: int, equal: bool, expected: list[tuple[int, ...]]) -> None:
    assert members_of(karmarkar_karp(costs, bins, equal), bins) == expected


def test_bins_descend_in_load() -> None:
    costs = np.random.default_rng(0).integers(1, 10_000, 500)
    loads = loads_of(karmarkar_karp(costs, 16), integer_costs(costs), 16)
    assert (np.diff(loads) <= 0).all()


def test_costs_too_large_for_one_sorting_number() -> None:
    """Sums and ties do not fit into 64 bits together, and are sorted one after the other."""
    costs = np.random.default_rng(1).integers(1, 1000, 200)
    assert np.array_equal(karmarkar_karp(costs * 2**33, 7), karmarkar_karp(costs, 7))


@pytest.mark.parametrize(
    ("costs", "bins", "message"),
    [
        ([1, 2], 0, "0 bins: there must be one or more"),
        ([1, -2], 1, "the cost of item 1 is -2: costs must be finite, 0 or more"),
        ([1.0, float("inf")], 1, "the cost of item 1 is inf"),
        ([[1], [2]], 1, r"costs have shape \(2, 1\)"),
        ([2**62] * 4, 1, "costs sum to 1.84467e\\+19, above 2\\*\\*52"),
        ([2**51, 2**51, 1], 1, "above 2\\*\\*52: give them in a larger unit"),
    ],
)
def test_bad_input(costs: list[int], bins: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        karmarkar_karp(costs, bins)
