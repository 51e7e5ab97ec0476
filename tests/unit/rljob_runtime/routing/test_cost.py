"""What a step costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.routing.cost import StepCost

GEARS = (1, 4, 16)


@pytest.mark.parametrize(
    ("gears", "running", "gear"),
    [
        ((), 0, 0),
        ((), 7, 7),
        (GEARS, 0, 1),
        (GEARS, 1, 1),
        (GEARS, 2, 4),
        (GEARS, 4, 4),
        (GEARS, 5, 16),
        (GEARS, 16, 16),
        (GEARS, 17, 17),
        (GEARS, 100, 100),
    ],
)
def test_a_batch_is_padded_to_the_next_graph_and_beyond_the_largest_runs_as_it_is(
    gears: tuple[int, ...], running: int, gear: int
) -> None:
    assert StepCost(gears=gears).gear(running) == gear


def test_a_step_is_the_sum_of_its_parts() -> None:
    cost = StepCost(fixed=0.5, per_request=0.25, per_kv_token=0.125, per_prefill_token=99.0, gears=GEARS)
    assert cost.step(0) == 0.5 + 0.25
    assert cost.step(3) == 0.5 + 4 * 0.25
    assert cost.step(3, 8) == 0.5 + 4 * 0.25 + 8 * 0.125
    assert cost.step(20, 8) == 0.5 + 20 * 0.25 + 8 * 0.125


def test_of_an_engine_of_which_nothing_is_known_each_step_takes_as_long() -> None:
    cost = StepCost()
    assert cost.step(1) == cost.step(500, 10**6) == cost.fixed == 0.01
    assert cost.per_prefill_token == 0.0


@given(st.lists(st.integers(1, 512), unique=True), st.integers(0, 600))
def test_a_gear_is_the_smallest_that_holds_the_batch(gears: list[int], running: int) -> None:
    found = StepCost(gears=tuple(sorted(gears))).gear(running)
    assert found == min((gear for gear in gears if gear >= running), default=running)
