"""What every micro-batch plan must keep."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.parallel.micro_batch_rows import pack_rows, sum_of_maxima
from rljob_runtime.parallel.micro_batches import Item, plan_micro_batches

CAP = 64
lengths_of_samples = st.lists(st.integers(1, CAP), max_size=60)
numbers_of_ranks = st.integers(1, 7)


@given(lengths_of_samples, numbers_of_ranks)
def test_every_sample_once_under_the_cap_and_ranks_in_step(lengths: list[int], ranks: int) -> None:
    items = [Item(0, index, length) for index, length in enumerate(lengths)]
    plan = plan_micro_batches(items, CAP, ranks)
    assert len(plan) == ranks
    assert len({len(batches) for batches in plan}) == 1
    assert sorted(index for batches in plan for batch in batches for index in batch) == list(
        range(len(lengths))
    )
    assert all(sum(lengths[index] for index in batch) <= CAP for batches in plan for batch in batches)
    assert plan == plan_micro_batches(items, CAP, ranks)
    for batches in plan:
        filled = [bool(batch) for batch in batches]
        assert filled == sorted(filled, reverse=True)


@given(lengths_of_samples, numbers_of_ranks)
def test_no_more_micro_batches_than_first_fit_decreasing_needs(lengths: list[int], ranks: int) -> None:
    plan = plan_micro_batches([Item(0, i, length) for i, length in enumerate(lengths)], CAP, ranks)
    bins: list[int] = []
    for length in sorted(lengths, reverse=True):
        place = next((place for place, used in enumerate(bins) if used + length <= CAP), len(bins))
        bins[place:] = [*([0] if place == len(bins) else bins[place:])]
        bins[place] += length
    assert len(plan[0]) <= -(-len(bins) // ranks)


@given(lengths_of_samples, numbers_of_ranks)
def test_ranks_differ_by_a_sample_at_most(lengths: list[int], ranks: int) -> None:
    plan = plan_micro_batches([Item(0, i, length) for i, length in enumerate(lengths)], CAP, ranks)
    loads = [sum(lengths[index] for batch in batches for index in batch) for batches in plan]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@given(
    st.lists(st.tuples(st.integers(0, CAP), st.floats(0, 1e6)), max_size=40),
    numbers_of_ranks,
    st.sampled_from([0.0, 1.0, 1e4]),
    st.booleans(),
)
def test_any_costs(samples: list[tuple[int, float]], ranks: int, pass_cost: float, in_step: bool) -> None:
    lengths, costs = [each[0] for each in samples], [each[1] for each in samples]
    items = [Item(0, index, length) for index, length in enumerate(lengths)]
    plan = plan_micro_batches(items, CAP, ranks, costs, pass_cost, in_step)
    assert len(plan) == ranks
    placed = [index for batches in plan for batch in batches for index in batch]
    assert sorted(placed) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in batch) <= CAP for batches in plan for batch in batches)
    assert all(batch == tuple(sorted(batch)) for batches in plan for batch in batches)
    assert plan == plan_micro_batches(items, CAP, ranks, costs, pass_cost, in_step)
    if in_step:
        assert len({len(batches) for batches in plan}) == 1
    else:
        assert all(all(batches) for batches in plan)


@given(st.lists(st.integers(1, CAP), min_size=1, max_size=40), numbers_of_ranks)
def test_costs_in_another_unit_give_the_same_rows(lengths: list[int], ranks: int) -> None:
    items = [Item(0, index, length) for index, length in enumerate(lengths)]
    costs = [length * length for length in lengths]
    assert plan_micro_batches(items, CAP, ranks, costs) == plan_micro_batches(
        items, CAP, ranks, [1000 * cost for cost in costs]
    )


@given(
    st.lists(st.integers(1, CAP), min_size=1, max_size=60),
    numbers_of_ranks,
    st.lists(st.integers(0, 2000), min_size=2, max_size=2),
)
def test_a_row_more_is_made_where_it_saves_time(lengths: list[int], ranks: int, constants: list[int]) -> None:
    """With one constant of a pass, the rows that are best with another one are no better."""
    tokens = np.array(lengths)
    costs = tokens * tokens
    plans = [pack_rows(tokens, costs, constant, CAP, ranks) for constant in constants]
    for place, constant in enumerate(constants):
        taken = [sum_of_maxima(each, costs, ranks, rows) + rows * constant for each, rows in plans]
        if constant:
            assert taken[place] == min(taken)
