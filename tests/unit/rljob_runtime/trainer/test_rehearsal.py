"""The pass before the first step."""

from typing import Any

import pytest

from rljob_api.context_parallel import ContextParallel
from rljob_runtime.trainer.rehearsal import rehearsed, rehearsed_degrees

CASES: dict[str, tuple[tuple[Any, ...], list[int]]] = {
    "a whole pass, of different lengths": (
        (16384, 4096, 512),
        [4096, 2048, 1024, 512, 4096, 2048, 1024, 512, 1024],
    ),
    "no more samples than a rank trains": ((16384, 4096, 3), [4096, 2048, 1024]),
    "a pass that holds less than a sample": ((1000, 4096, 8), [1000]),
    "as many tokens as the model is wide": ((4096, 3000, 8, {4095, 4096}), [3000, 1094]),
    "a width that no pass has": ((4096, 3000, 8, {4097}), [3000, 1096]),
    "the shortest": ((16384, 2, 3), [2, 2, 2]),
    "nothing that could be predicted": ((1, 4096, 8), []),
}


@pytest.mark.parametrize("case", CASES)
def test_lengths(case: str) -> None:
    asked, expected = CASES[case]
    assert rehearsed(*asked) == expected


@pytest.mark.parametrize(
    ("asked", "ranks", "expected"),
    [
        ({"none": {}}, 8, [1]),
        ({"fixed": {"degree": 4}}, 8, [4]),
        ({"hybrid": {}}, 1, [1]),
        ({"hybrid": {}}, 8, [1, 2, 4, 8]),
        ({"hybrid": {}}, 7, [1, 2, 4]),
        ({"hybrid": {"largestDegree": 2}}, 8, [1, 2]),
    ],
)
def test_each_number_of_ranks_that_may_share_a_pass(
    asked: dict[str, object], ranks: int, expected: list[int]
) -> None:
    assert rehearsed_degrees(ContextParallel.model_validate(asked), ranks) == expected
