"""What must hold for the updates of a step, whatever its groups."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.parallel.karmarkar_karp import karmarkar_karp
from rljob_runtime.parallel.loads import integer_costs, loads_of
from rljob_runtime.parallel.longest_first import longest_first
from rljob_runtime.parallel.mini_batches import BatchOrder, split_groups

tokens_of_groups = st.lists(st.integers(0, 100_000), max_size=50)
sizes = st.integers(1, 20)
ORDERS: tuple[BatchOrder, ...] = ("level", "data", "shortEnds")


@given(tokens_of_groups, sizes, st.sampled_from(ORDERS))
def test_every_group_once(tokens: list[int], size: int, order: BatchOrder) -> None:
    updates = split_groups(tokens, size, order)
    assert sorted(index for update in updates for index in update) == list(range(len(tokens)))
    assert len(updates) == -(-len(tokens) // size)
    assert all(1 <= len(update) <= size for update in updates)
    assert all(update == tuple(sorted(update)) for update in updates)
    assert updates == split_groups(tokens, size, order)


@given(tokens_of_groups.filter(len), sizes)
def test_level_updates(tokens: list[int], size: int) -> None:
    updates = split_groups(tokens, size, "level")
    assert max(map(len, updates)) - min(map(len, updates)) <= 1
    assert updates == sorted(updates)
    most = max(sum(tokens[index] for index in update) for update in updates)
    values = integer_costs(tokens)
    for method in (longest_first, karmarkar_karp):
        assert most <= loads_of(method(values, len(updates), True), values, len(updates)).max()


@given(st.integers(1, 8), st.integers(1, 6), st.data())
def test_level_updates_are_never_less_even_than_those_in_order(
    size: int, number: int, data: st.DataObject
) -> None:
    """Where all updates have the same size in both."""
    tokens = data.draw(st.lists(st.integers(0, 1000), min_size=size * number, max_size=size * number))
    most = {
        order: max(sum(tokens[index] for index in update) for update in split_groups(tokens, size, order))
        for order in ORDERS
    }
    assert most["level"] <= min(most.values())
