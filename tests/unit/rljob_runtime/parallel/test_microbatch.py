"""Micro-batch plans for cases that can be checked by eye."""

import pytest

from rljob_runtime.parallel.microbatch import Item, SampleTooLong, plan_micro_batches

CASES = [
    # lengths, cap, ranks, token counts of each rank's micro-batches
    pytest.param([], 10, 2, [[], []], id="nothing to train"),
    pytest.param([5], 10, 1, [[5]], id="one sample"),
    pytest.param([5], 10, 2, [[5], [0]], id="a rank without work takes part"),
    pytest.param([10, 10, 10], 10, 1, [[10, 10, 10]], id="each at the cap"),
    pytest.param([4, 4, 2, 2], 6, 1, [[6, 6]], id="fills"),
    pytest.param([6, 5, 4, 3, 2, 1], 30, 2, [[11], [10]], id="balanced, not packed tight"),
    pytest.param([9, 1, 9, 1], 10, 2, [[10], [10]], id="long with short"),
    pytest.param([1, 2, 3, 4, 10], 20, 2, [[10], [10]], id="the longest are dealt first"),
    pytest.param([3, 3, 2, 2, 2], 6, 2, [[5, 2], [5, 0]], id="balance before count"),
    pytest.param([8, 6, 4, 2], 8, 2, [[8, 2], [6, 4]], id="long with short, twice"),
]


@pytest.mark.parametrize(("lengths", "cap", "ranks", "expected"), CASES)
def test_plan(lengths: list[int], cap: int, ranks: int, expected: list[list[int]]) -> None:
    plan = plan_micro_batches([Item(0, i, length) for i, length in enumerate(lengths)], cap, ranks)
    assert [[sum(lengths[i] for i in batch) for batch in rank] for rank in plan] == expected


def test_a_sample_above_the_cap_is_named() -> None:
    with pytest.raises(SampleTooLong) as caught:
        plan_micro_batches([Item(7, 0, 20), Item(8, 3, 65)], 64, 2)
    assert str(caught.value) == (
        "sample 3 of prompt 8 has 65 tokens, above parallel.maxTokensPerMicroBatch (64): raise it, or lower "
        "rollout.maxResponseTokens"
    )
