"""What the benchmark of the example's learning says of a job, from the metrics of its steps."""

import pytest

from tests.bench.learning_example import Way, figures, way


def rows(*stretches: tuple[int, float]) -> list[dict[str, float]]:
    """Metrics of so many steps with so high a reward, one stretch after the other."""
    rewards = (reward for steps, reward in stretches for _ in range(steps))
    return [{"reward_mean": reward, "entropy": 1 - reward} for reward in rewards]


@pytest.mark.parametrize(
    ("stretches", "found"),
    [
        pytest.param([(10, 0.0), (20, 1.0)], Way(1.0, 19, 0.9, 0.0), id="learns"),
        pytest.param([(10, 1.0), (10, 0.5), (10, 0.75)], Way(0.75, 10, 0.5, 0.25), id="loses it again"),
        pytest.param([(10, 1.0), (5, 0.5), (15, 1.0)], Way(1.0, 10, 0.75, 0.0), id="a dip between"),
        pytest.param([(9, 1.0)], Way(1.0, None, None, 0.0), id="too few steps for a mean"),
        pytest.param([(30, 0.875)], Way(0.875, None, None, 0.125), id="never learns"),
    ],
)
def test_the_way_of_a_job(stretches: list[tuple[int, float]], found: Way) -> None:
    assert way(rows(*stretches)) == found


def test_what_did_not_happen_has_no_figure() -> None:
    learned, never = Way(0.99, 150, 0.98, 0.03), Way(0.875, None, None, 0.01)
    assert [(each.value, each.baseline) for each in figures("x", learned, never)] == [
        (0.99, 0.875), (150, None), (0.98, None), (0.03, 0.01),
    ]  # fmt: skip
    assert [each.value for each in figures("x", never, learned)] == [0.875, 0.01]
    assert [each.baseline for each in figures("x", learned, None)] == [None] * 4
