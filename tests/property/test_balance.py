"""What must hold for Karmarkar–Karp, longest processing time first, and exchanges, whatever the costs."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.parallel.karmarkar_karp import karmarkar_karp
from rljob_runtime.parallel.loads import integer_costs, loads_of, members_of
from rljob_runtime.parallel.longest_first import NoRoom, Room, balance, longest_first, refine
from tests.support.heap_karmarkar_karp import heap_karmarkar_karp
from tests.support.imbalance import imbalance

all_costs = st.one_of(
    st.lists(st.integers(0, 20), max_size=40),
    st.lists(st.integers(0, 100_000), max_size=40),
)
numbers_of_bins = st.integers(1, 9)


@given(all_costs, numbers_of_bins)
def test_karmarkar_karp_is_the_heap_of_states(costs: list[int], bins: int) -> None:
    found = members_of(karmarkar_karp(costs, bins), bins)
    assert found == heap_karmarkar_karp(costs, bins, equal=False)


@given(st.integers(1, 6), numbers_of_bins, st.data())
def test_karmarkar_karp_of_equal_sizes_is_the_heap_of_states(
    each: int, bins: int, data: st.DataObject
) -> None:
    size = each * bins
    costs = data.draw(st.lists(st.integers(0, 1000), min_size=size, max_size=size))
    found = members_of(karmarkar_karp(costs, bins, equal=True), bins)
    assert found == heap_karmarkar_karp(costs, bins, equal=True)


@pytest.mark.parametrize("method", [karmarkar_karp, longest_first, balance])
@given(all_costs, numbers_of_bins, st.booleans())
def test_every_item_once_and_equal_sizes(method, costs: list[int], bins: int, equal: bool) -> None:  # type: ignore[no-untyped-def]
    bin_of = method(costs, bins, equal)
    assert bin_of.shape == (len(costs),)
    assert np.array_equal(bin_of, method(costs, bins, equal))
    sizes = np.bincount(bin_of, minlength=bins)
    assert len(sizes) == bins
    if equal:
        assert sizes.max() - sizes.min() <= 1


@given(all_costs, numbers_of_bins, st.booleans())
def test_exchanges_never_make_it_worse(costs: list[int], bins: int, equal: bool) -> None:
    values = integer_costs(costs)
    before, after = longest_first(values, bins, equal), balance(values, bins, equal)
    assert imbalance(loads_of(after, values, bins)) <= imbalance(loads_of(before, values, bins))


@given(all_costs, numbers_of_bins)
def test_what_may_have_any_sizes_is_no_worse(costs: list[int], bins: int) -> None:
    values = integer_costs(costs)
    free, equal, published = (
        int(loads_of(bin_of, values, bins).max(initial=0))
        for bin_of in (
            balance(values, bins),
            balance(values, bins, equal=True),
            karmarkar_karp(values, bins),
        )
    )
    assert free <= min(equal, published) + 1e-5 * values.sum() / bins


@given(all_costs, numbers_of_bins, st.data())
def test_exchanges_keep_to_the_room(costs: list[int], bins: int, data: st.DataObject) -> None:
    values = integer_costs(costs)
    sizes = np.array(
        data.draw(st.lists(st.integers(0, 50), min_size=len(costs), max_size=len(costs))), dtype=np.int64
    )
    room = Room(sizes, data.draw(st.integers(50, 300)))
    try:
        dealt = longest_first(values, bins, room=room)
    except NoRoom:
        return
    after = refine(values, dealt, bins, room=room)
    for bin_of in (dealt, after):
        assert loads_of(bin_of, sizes, bins).max(initial=0) <= room.cap
    assert loads_of(after, values, bins).max(initial=0) <= loads_of(dealt, values, bins).max(initial=0)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), numbers_of_bins)
def test_longest_first_is_grahams(costs: list[int], bins: int) -> None:
    heap = [(0, index) for index in range(bins)]
    for cost in sorted(costs, reverse=True):
        load, index = heapq.heappop(heap)
        heapq.heappush(heap, (load + cost, index))
    loads = loads_of(longest_first(costs, bins), integer_costs(costs), bins)
    assert sorted(loads.tolist()) == sorted(load for load, _ in heap)


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=30))
def test_fractions_keep_their_order(costs: list[float]) -> None:
    values = integer_costs(costs)
    assert values.min() >= 0
    assert values.sum() <= 2**52
    order = np.argsort(costs, kind="stable")
    assert (np.diff(values[order]) >= 0).all()
