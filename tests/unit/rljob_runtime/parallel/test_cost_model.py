"""What a pass costs."""

import numpy as np
import pytest

from rljob_runtime.parallel.cost_model import CostModel, CostTable, ModelShape, padded

MODEL = CostModel(1.0, 0.1, 0.01, shared_pass=(0.0, 0.5, 0.7), shared_token=(0.0, 0.03, 0.04))


@pytest.mark.parametrize(
    ("degree", "lengths", "expected"),
    [(1, [1, 2, 7], [1, 2, 7]), (2, [1, 4, 5], [4, 4, 8]), (4, [1, 8, 9], [8, 8, 16])],
)
def test_samples_are_padded_to_twice_the_degree(degree: int, lengths: list[int], expected: list[int]) -> None:
    assert padded(np.array(lengths), degree).tolist() == expected


@pytest.mark.parametrize(
    ("lengths", "degree", "seconds"),
    [
        ([10], 1, 1.0 + 1.0 + 1.0),
        ([10, 5], 1, 1.0 + 1.5 + 1.25),
        # 10 is 12 with padding.
        ([10], 2, 1.5 + (1.2 + 1.44) / 2 + 0.36),
        ([16], 4, 1.7 + (1.6 + 2.56) / 4 + 0.64),
        # Beyond the degrees that are known, as for the last of them.
        ([16], 8, 1.7 + (1.6 + 2.56) / 8 + 0.64),
        ([], 1, 1.0),
    ],
)
def test_seconds_of_a_pass(lengths: list[int], degree: int, seconds: float) -> None:
    assert MODEL.seconds(lengths, degree) == pytest.approx(seconds)


def test_the_prior_is_the_arithmetic_of_the_model() -> None:
    """36 layers of 4,096 channels: a token of attention costs as much as one of the matrices at 31,000 tokens
    of context, and a long sample pays to be shared where a short one does not."""
    cost = CostModel.prior(ModelShape(36, 7_570_000_000, 4096, 1024), 8)
    assert len(cost.shared_pass) == len(cost.shared_token) == 4
    assert cost.per_token / cost.per_square == pytest.approx(31_000, rel=0.02)
    assert cost.seconds([32_768], 8) < cost.seconds([32_768], 1) / 6
    assert 8 * cost.seconds([7_344], 8) > 1.5 * cost.seconds([7_344], 1)
    assert cost.shared_token[1] < cost.shared_token[2] < cost.shared_token[3]


def test_many_passes_at_once_take_what_each_takes() -> None:
    table = CostTable({1: ((100.0, 1.5), (900.0, 0.5)), 2: ((300.0, 2.0),)})
    model = CostModel(0.5, 1e-3, 1e-7, (0.0, 0.25), (0.0, 1e-4), table)
    passes = [([300, 5, 1000], 1), ([], 1), ([301], 4), ([7, 8], 2), ([], 2), ([1], 1)]
    one_by_one = [model.seconds(lengths, degree) for lengths, degree in passes]
    assert model.seconds_of_each(passes) == pytest.approx(one_by_one, rel=1e-12)
    assert model.seconds_of_each([]) == []
