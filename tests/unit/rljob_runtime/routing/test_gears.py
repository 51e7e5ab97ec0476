"""Which batch sizes get a graph."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.gears import capture_sizes

BEYOND_32 = (36, 40, 44, 48, 52, 56, 60, 64)
"""Eight to a doubling."""
TO_512 = (*range(72, 129, 8), *range(144, 257, 16), *range(288, 513, 32))


@pytest.mark.parametrize(
    ("running", "drafts", "added"),
    [(1, 0, ()), (16, 0, ()), (12, 1, ()), (19, 0, (19,)), (1, 18, (19,))],
    ids=["one", "a full step is among them", "drafted tokens", "it is not", "with drafted tokens"],
)
def test_small_sizes_are_fine(running: int, drafts: int, added: tuple[int, ...]) -> None:
    usual = {*range(1, 17), *range(18, 33, 2), *BEYOND_32, *TO_512}
    assert capture_sizes(running, drafts) == tuple(sorted({*usual, *added}))


@pytest.mark.parametrize(
    ("running", "most"), [(1, 512), (128, 512), (200, 800), (512, 2048), (1024, 2048), (3000, 3000)]
)
def test_steps_with_prompts_have_graphs_too(running: int, most: int) -> None:
    assert capture_sizes(running)[-1] == most


@given(st.integers(1, 4096), st.integers(0, 8))
def test_a_step_computes_at_most_an_eighth_too_much(running: int, drafts: int) -> None:
    sizes = capture_sizes(running, drafts)
    full = running * (1 + drafts)
    assert sizes[0] == 1 and full in sizes and list(sizes) == sorted(set(sizes))
    assert max(full, 512) <= sizes[-1] <= max(full, 2048)
    assert all(later <= max(1, earlier // 8) + earlier for earlier, later in itertools.pairwise(sizes))
    cost = StepCost(per_request=1.0, gears=sizes)
    assert cost.gear(full) == full


def test_a_graph_more_for_every_eighth_of_a_doubling() -> None:
    assert [len(capture_sizes(running)) for running in (64, 256, 512, 1024)] == [56, 64, 72, 72]
