"""The parts of an engine core's start, over its ranks."""

import pytest

from rljob_runtime.engines.core_start import over_ranks
from rljob_runtime.site.own_start import StartPart

Told = list[tuple[str, float, float]]
ONE: Told = [("boot", 10.0, 5.0), ("device", 15.0, 1.0), ("load", 16.0, 4.0), ("graphs", 21.0, 9.0)]
CASES: dict[str, tuple[list[Told], list[StartPart]]] = {
    "one rank": ([ONE], [StartPart(*each) for each in ONE]),
    "the first begin to the last end": (
        [[("load", 16.0, 4.0)], [("load", 15.5, 3.0)]],
        [StartPart("load", 15.5, 4.5)],
    ),
    "a process that was there before": (
        [[("boot", 9.0, 6.0), ("load", 16.0, 4.0)]],
        [StartPart("load", 16.0, 4.0)],
    ),
    "what this vLLM calls twice": (
        [[("graphs", 20.0, 1.0), ("graphs", 22.0, 2.0)]],
        [StartPart("graphs", 20.0, 4.0)],
    ),
    "a part that is not known": ([[("other", 16.0, 4.0)]], []),
    "nothing": ([[], []], []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_parts_over_ranks(case: str) -> None:
    told, found = CASES[case]
    assert over_ranks(told, asked=10.0) == found
