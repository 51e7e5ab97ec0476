"""Which batch sizes get a graph."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.gears import capture_sizes


@pytest.mark.parametrize(
    ("running", "drafts", "sizes"),
    [
        (1, 0, (1, 2)),
        (4, 0, tuple(range(1, 9))),
        (12, 0, (*range(1, 17), 18, 20, 22, 24)),
        (20, 0, (*range(1, 17), 18, 20, 22, 24, 26, 28, 30, 32, 36, 40)),
        (1, 3, tuple(range(1, 9))),
        (19, 0, (*range(1, 17), 18, 19, 20, 22, 24, 26, 28, 30, 32, 36, 38)),
    ],
)
def test_small_sizes_are_fine(running: int, drafts: int, sizes: tuple[int, ...]) -> None:
    assert capture_sizes(running, drafts) == sizes


@given(st.integers(1, 4096), st.integers(0, 8))
def test_a_step_computes_at_most_an_eighth_too_much(running: int, drafts: int) -> None:
    sizes = capture_sizes(running, drafts)
    full = running * (1 + drafts)
    assert sizes[0] == 1 and full in sizes and list(sizes) == sorted(set(sizes))
    assert full <= sizes[-1] <= max(full, 512)
    assert all(later <= max(1, earlier // 8) + earlier for earlier, later in itertools.pairwise(sizes))
    cost = StepCost(per_request=1.0, gears=sizes)
    assert cost.gear(full) == full


def test_there_are_about_as_many_graphs_as_vllm_captures_by_itself() -> None:
    assert len(capture_sizes(256)) == 56
    assert len(capture_sizes(1024)) == 64
