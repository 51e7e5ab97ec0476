"""What every micro-batch plan must keep."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.parallel.microbatch import Item, plan_micro_batches

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
def test_no_two_micro_batches_of_a_rank_would_fit_one(lengths: list[int], ranks: int) -> None:
    for batches in plan_micro_batches([Item(0, i, length) for i, length in enumerate(lengths)], CAP, ranks):
        sizes = sorted(sum(lengths[index] for index in batch) for batch in batches if batch)
        assert len(sizes) < 2 or sizes[0] + sizes[1] > CAP


@given(lengths_of_samples, numbers_of_ranks)
def test_ranks_differ_by_a_sample_at_most(lengths: list[int], ranks: int) -> None:
    plan = plan_micro_batches([Item(0, i, length) for i, length in enumerate(lengths)], CAP, ranks)
    loads = [sum(lengths[index] for batch in batches for index in batch) for batches in plan]
    assert max(loads) - min(loads) <= max(lengths, default=0)
