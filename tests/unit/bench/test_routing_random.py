"""Which random workloads are drawn, and by how many of their jobs they are compared."""

from pathlib import Path
from typing import Any

import pytest

from tests.bench.routing_random import SHORT, WORKLOADS, Drawn, Ratio, collected, compare, draw, ratio

QUEUED = [draw(seed) for seed in range(SHORT, WORKLOADS)]


def test_long_queues_have_at_least_six_times_as_many_responses_in_a_step_as_run_at_a_time() -> None:
    waves = [each.site.groups * each.site.samples / each.site.engines / each.site.limit for each in QUEUED]
    assert min(waves) >= 6


@pytest.mark.parametrize("kind", ["lognormal", "uniform", "of two kinds", "of two kinds by prompt", "Pareto"])
def test_long_queues_have_lengths_of_every_kind(kind: str) -> None:
    assert any(each.kind == kind for each in QUEUED)


def test_some_of_them_have_a_heavy_pool_a_bound_above_zero_or_the_same_prompts_in_each_step() -> None:
    assert any(each.heavy for each in QUEUED)
    assert {each.bound for each in QUEUED} == {0, 1}
    assert any(each.epochs for each in QUEUED)


@pytest.mark.parametrize(
    ("pairs", "value", "error"),
    [
        ([(2.0, 1.0), (4.0, 2.0)], 2.0, 0.0),
        ([(3.0, 2.0), (1.0, 2.0)], 1.0, 0.5),
        ([(3.0, 2.0), (1.0, 2.0), (3.0, 2.0), (1.0, 2.0)], 1.0, (4 / 12) ** 0.5 / 2),
    ],
)
def test_a_ratio_is_that_of_the_sums(pairs: list[tuple[float, float]], value: float, error: float) -> None:
    assert ratio(pairs) == pytest.approx((value, error, len(pairs)))


def jobs(queued: Drawn, *ours: float) -> Ratio:
    """Compared where least in flight takes a second for each job, and adaptive these in turn."""

    def wall(routing: dict[str, Any], seed: int) -> float:
        return 1.0 if "leastInFlight" in routing else ours[seed % len(ours)]

    return compare(queued, wall, 0)


FEW, MANY = draw(0), next(each for each in QUEUED if each.most > 100)


@pytest.mark.parametrize(
    ("drawn", "ours", "count"),
    [
        pytest.param(FEW, (1.0, 1.3), 3, id="always three without long queues"),
        pytest.param(MANY, (1.0,), 6, id="six where all are alike"),
        pytest.param(MANY, (0.8, 0.9), 6, id="six where it is surely faster"),
        pytest.param(MANY, (1.1, 1.2), 6, id="six where it is surely slower"),
        pytest.param(MANY, (0.9, 1.12), MANY.most, id="as many as there may be where it is near the goal"),
    ],
)
def test_jobs_are_drawn_until_they_tell(drawn: Drawn, ours: tuple[float, ...], count: int) -> None:
    assert jobs(drawn, *ours).jobs == count


def test_what_parts_have_printed_is_collected(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("0 1.5 0.25 3 \n1 0.75 0.5 6 3 engines of 2, slow\n")
    (tmp_path / "two").write_text("2 1.0 0.0 3 \n")
    found = collected([str(tmp_path / "one"), str(tmp_path / "two")])
    assert found == {0: Ratio(1.5, 0.25, 3), 1: Ratio(0.75, 0.5, 6), 2: Ratio(1.0, 0.0, 3)}
