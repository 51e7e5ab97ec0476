"""Which groups make which update, for cases that can be checked by eye."""

import pytest

from rljob_runtime.parallel.mini_batches import BatchOrder, split_groups

CASES = [
    # tokens of groups, size of an update, order, groups of each update
    pytest.param([], 2, "level", [], id="no groups"),
    pytest.param([5], 2, "level", [(0,)], id="one group"),
    pytest.param([9, 1, 8, 2], 4, "level", [(0, 1, 2, 3)], id="one update has all"),
    pytest.param([9, 8, 1, 2], 2, "level", [(0, 2), (1, 3)], id="long with short"),
    pytest.param([1, 2, 9, 8], 2, "level", [(0, 2), (1, 3)], id="what comes first is trained first"),
    pytest.param([9, 1, 1, 1], 2, "level", [(0, 1), (2, 3)], id="sizes come before tokens"),
    pytest.param([4, 4, 4, 4, 4], 2, "level", [(0, 1), (2, 3), (4,)], id="sizes differ by one"),
    pytest.param([0, 0, 0, 7], 2, "level", [(0, 1), (2, 3)], id="groups with nothing to train"),
    pytest.param([9, 8, 1, 2, 3], 2, "data", [(0, 1), (2, 3), (4,)], id="as they come"),
    pytest.param([], 2, "data", [], id="as they come, no groups"),
    pytest.param([10, 20, 30, 40, 50, 60], 2, "shortEnds", [(0, 2), (4, 5), (1, 3)], id="short at the ends"),
    pytest.param([60, 10, 50, 20, 40, 30], 2, "shortEnds", [(1, 5), (0, 2), (3, 4)], id="short ends, mixed"),
    pytest.param([5, 5, 5], 2, "shortEnds", [(0, 2), (1,)], id="short ends, all alike"),
]


@pytest.mark.parametrize(("tokens", "size", "order", "expected"), CASES)
def test_updates(tokens: list[int], size: int, order: BatchOrder, expected: list[tuple[int, ...]]) -> None:
    assert split_groups(tokens, size, order) == expected


@pytest.mark.parametrize("order", ["level", "data", "shortEnds"])
def test_bad_input(order: BatchOrder) -> None:
    with pytest.raises(ValueError, match="updates of 0 groups: there must be one or more in each"):
        split_groups([1], 0, order)
    with pytest.raises(ValueError, match="the cost of item 0 is -1"):
        split_groups([-1], 1, order)
