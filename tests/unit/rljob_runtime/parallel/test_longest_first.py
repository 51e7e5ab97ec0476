"""Longest processing time first and exchanges, on examples that can be followed by hand."""

import numpy as np
import pytest

from rljob_runtime.parallel.karmarkar_karp import karmarkar_karp
from rljob_runtime.parallel.loads import integer_costs, loads_of, members_of
from rljob_runtime.parallel.longest_first import NoRoom, Room, balance, longest_first, refine
from tests.support.imbalance import imbalance

CASES = [
    # costs, bins, equal, loads dealt longest first, loads after exchanges
    pytest.param([8, 7, 6, 5, 4], 2, False, [17, 13], [15, 15], id="an exchange makes it even"),
    pytest.param([5, 5, 4, 4, 3, 3, 3], 3, False, [11, 8, 8], [9, 9, 9], id="Graham's example"),
    pytest.param([9, 1, 1, 1], 2, False, [9, 3], [9, 3], id="the costliest item is the bound"),
    pytest.param([9, 1, 1, 1], 2, True, [10, 2], [10, 2], id="equal sizes forbid a move"),
    pytest.param([10, 9, 8, 3, 2, 1], 3, True, [11, 11, 11], [11, 11, 11], id="even from the beginning"),
    pytest.param([9, 7, 2, 2, 1], 2, True, [11, 10], [11, 10], id="sizes that differ by one"),
    pytest.param(
        [100, 30, 30, 30, 1, 1], 2, True, [102, 90], [102, 90], id="what costs least is left for it"
    ),
    pytest.param([4, 2], 3, False, [4, 2, 0], [4, 2, 0], id="fewer items than bins"),
    pytest.param([0, 0, 0], 2, True, [0, 0], [0, 0], id="items of cost 0"),
    pytest.param([], 2, False, [0, 0], [0, 0], id="no items"),
    pytest.param([3, 1], 1, False, [4], [4], id="one bin"),
]


@pytest.mark.parametrize(("costs", "bins", "equal", "dealt", "after"), CASES)
def test_loads(costs: list[int], bins: int, equal: bool, dealt: list[int], after: list[int]) -> None:
    values = integer_costs(costs)
    first = longest_first(values, bins, equal)
    assert sorted(loads_of(first, values, bins).tolist(), reverse=True) == dealt
    exchanged = refine(values, first, bins, equal)
    assert sorted(loads_of(exchanged, values, bins).tolist(), reverse=True) == after
    assert np.array_equal(exchanged, balance(costs, bins, equal))


@pytest.mark.parametrize(
    ("costs", "bins", "first", "best"),
    [
        pytest.param([50, 93, 66, 8, 24, 6, 5, 34, 40, 4, 55, 44], 4, 117, 109, id="from equal sizes"),
        pytest.param([6, 16, 13, 4, 14, 6], 2, 31, 30, id="from Karmarkar and Karp"),
    ],
)
def test_another_beginning_where_exchanges_lead_nowhere(
    costs: list[int], bins: int, first: int, best: int
) -> None:
    values = integer_costs(costs)
    assert loads_of(refine(values, longest_first(values, bins), bins), values, bins).max() == first
    assert loads_of(balance(costs, bins), values, bins).max() == best


def test_an_exchange_with_neither_of_the_lightest_bins() -> None:
    """Only the second bin has items that make the first one lighter."""
    values = integer_costs([10, 10, 9, 9, 12, 5, 13, 3])
    bin_of = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    assert loads_of(bin_of, values, 4).tolist() == [20, 18, 17, 16]
    after = refine(values, bin_of, 4, equal=True)
    assert loads_of(after, values, 4).max() == 19


@pytest.mark.parametrize("bins", [2, 3])
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (None, [(0, 2, 4), (1, 3, 5)]),
        ([1, 3, 1, 1, 5, 1], [(0, 2, 4), (1, 3, 5)]),
        ([1, 5, 1, 1, 3, 1], [(0, 2, 4), (1, 3, 5)]),
        ([2, 4, 1, 1, 7, 1], [(0, 1, 5), (2, 3, 4)]),
    ],
    ids=["any", "the heavy one gets full", "the other one gets full", "the heavy one has no room for it"],
)
def test_the_exchange_after_which_two_bins_are_closest(
    sizes: list[int] | None, expected: list[tuple[int, ...]], bins: int
) -> None:
    """10 for 7, or where that does not fit 1 for 0. The third bin has nothing to exchange."""
    values, bin_of = integer_costs([12, 10, 1, 11, 7, 0, 13, 1, 1]), np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
    items = 3 * bins
    room = None if sizes is None else Room(np.array([*sizes, 1, 1, 1][:items]), max(sizes) + 2)
    after = refine(values[:items], bin_of[:items], bins, equal=True, room=room, rounds=1 if bins == 2 else 2)
    assert members_of(after, bins)[:2] == expected


def test_a_full_bin_is_left_out() -> None:
    room = Room(np.array([5, 5, 5]), 10)
    assert members_of(longest_first([1, 1, 9], 2, room=room), 2) == [(2,), (0, 1)]
    assert members_of(longest_first([9, 4, 4], 2, room=Room(np.array([1, 9, 9]), 10)), 2) == [(0, 2), (1,)]


def test_of_items_that_cost_alike_the_largest_goes_first() -> None:
    """After 2, 3 and 5, dealt in turn, 10 would fit nowhere."""
    room = Room(np.array([2, 3, 5, 10]), 10)
    assert members_of(longest_first([1, 1, 1, 1], 2, room=room), 2) == [(3,), (0, 1, 2)]


def test_an_exchange_that_there_is_no_room_for() -> None:
    values, bin_of = integer_costs([6, 5, 1, 4]), np.array([0, 0, 1, 1])
    assert loads_of(refine(values, bin_of, 2), values, 2).max() == 9
    narrow = Room(np.array([5, 5, 1, 9]), 10)
    assert loads_of(refine(values, bin_of, 2, room=narrow), values, 2).max() == 11


def test_no_room() -> None:
    with pytest.raises(NoRoom):
        longest_first([1, 1, 1], 1, room=Room(np.array([5, 5, 1]), 10))


@pytest.mark.parametrize("method", [longest_first, balance])
def test_no_bins(method) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="0 bins: there must be one or more"):
        method([1], 0)


def heavy_tailed(items: int, seed: int = 0) -> np.ndarray:
    """Lengths of up to 32,768 tokens, with siblings alike."""
    rng = np.random.default_rng(seed)
    between, within = rng.standard_normal((items // 16, 1)), rng.standard_normal((items // 16, 16))
    return np.rint(np.exp(8.5 + 0.8 * between + 0.5 * within)).clip(16, 32768).astype(np.int64).ravel()


@pytest.mark.parametrize(
    ("items", "bins", "equal", "most"),
    [
        (512, 8, True, 1.00001),
        (8192, 1024, True, 1.003),
        (8192, 1024, False, 1.003),
        (16384, 256, False, 1.00001),
    ],
)
def test_even_for_heavy_tailed_lengths(items: int, bins: int, equal: bool, most: float) -> None:
    values = heavy_tailed(items)
    assert imbalance(loads_of(balance(values, bins, equal), values, bins)) <= most


def lognormal(deviation: float, items: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.rint(np.exp(7 + deviation * rng.standard_normal(items))).clip(1, 32768).astype(np.int64)


def uniform(items: int, unit: int = 1) -> np.ndarray:
    return unit * np.random.default_rng(0).integers(1, 3000, items)


@pytest.mark.parametrize("deviation", [1.0, 1.5, 2.0])
def test_equal_sizes_beside_items_above_the_mean_load(deviation: float) -> None:
    """The bins of the costliest items hold the least that they can: on average the items that cost least."""
    values = np.sort(lognormal(deviation, 8192))
    largest, smallest = np.cumsum(values[::-1]), np.cumsum(values)
    least = max((largest[bins - 1] + smallest[7 * bins - 1]) / bins for bins in range(1, 1025))
    assert loads_of(balance(values, 1024, equal=True), values, 1024).max() <= 1.0005 * least


@pytest.mark.parametrize("unit", [1, 512], ids=["tokens", "multiples of 512"])
def test_as_even_as_whole_numbers_allow(unit: int) -> None:
    values = uniform(65536, unit)
    mean = values.sum() / 1024 / unit
    assert loads_of(balance(values, 1024), values, 1024).max() == unit * np.ceil(mean)


@pytest.mark.parametrize(
    "costs", [uniform(512), uniform(8192), uniform(512) ** 2], ids=["few", "many", "squares"]
)
def test_equal_sizes_are_no_less_even_than_karmarkar_and_karps(costs: np.ndarray) -> None:
    bins = len(costs) // 4
    theirs, ours = karmarkar_karp(costs, bins, equal=True), balance(costs, bins, equal=True)
    assert loads_of(ours, costs, bins).max() <= loads_of(theirs, costs, bins).max()


def test_costs_that_are_all_nothing_are_whole_numbers_too() -> None:
    assert integer_costs([0.0, 0.0]).dtype == np.int64


def test_costs_of_any_size() -> None:
    costs = heavy_tailed(512).astype(np.float64) ** 2
    for unit in (1e-300, 1.0, 1e290):
        assert np.array_equal(balance(costs * unit, 8), balance(costs, 8))
