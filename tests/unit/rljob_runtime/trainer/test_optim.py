"""The learning rate of each update, and what an update does."""

import math

import pytest
import torch

from rljob_api.algorithm import Optimizer
from rljob_runtime.trainer.optim import ScheduledAdamW, Shape, learning_rate_factor

CASES = [
    # shape, warm-up, total, update, factor
    ("constant", 0, None, 0, 1.0),
    ("constant", 0, None, 10**6, 1.0),
    ("constant", 4, None, 0, 0.25),
    ("constant", 4, None, 3, 1.0),
    ("constant", 4, None, 4, 1.0),
    ("linear", 0, 10, 0, 1.0),
    ("linear", 0, 10, 5, 0.5),
    ("linear", 0, 10, 10, 0.0),
    ("linear", 0, 10, 11, 0.0),
    ("linear", 2, 10, 1, 1.0),
    ("linear", 2, 10, 6, 0.5),
    ("cosine", 0, 10, 0, 1.0),
    ("cosine", 0, 10, 5, 0.5),
    ("cosine", 0, 8, 2, 0.5 + math.sqrt(0.125)),
    ("cosine", 2, 10, 6, 0.5),
    ("cosine", 10, 10, 10, 1.0),
]


@pytest.mark.parametrize(("shape", "warmup", "total", "update", "factor"), CASES)
def test_factor(shape: Shape, warmup: int, total: int | None, update: int, factor: float) -> None:
    assert learning_rate_factor(shape, warmup, total, update) == pytest.approx(factor)


def test_a_falling_rate_needs_an_end() -> None:
    with pytest.raises(ValueError, match=r"optimizer\.schedule: linear needs the job's number of updates"):
        ScheduledAdamW([torch.nn.Parameter(torch.ones(1))], Optimizer(schedule="linear"), None)


def test_first_update_of_adamw() -> None:
    """The first step is lr * sign(gradient) beside lr * decay * weight, whatever the gradient's size."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = ScheduledAdamW(
        [weight], Optimizer(learning_rate=0.1, weight_decay=0.5, max_grad_norm=1.0), None
    )
    weight.grad = torch.tensor([3.0, -4.0])
    assert optimizer.clip() == pytest.approx(5.0)
    torch.testing.assert_close(weight.grad, torch.tensor([0.6, -0.8]), rtol=1e-5, atol=0)
    optimizer.step()
    torch.testing.assert_close(weight.data, torch.tensor([1 - 0.05 - 0.1, -2 + 0.1 + 0.1]), rtol=1e-5, atol=0)
    assert weight.grad is None


def test_a_skipped_update_moves_the_schedule_alone() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = ScheduledAdamW([weight], Optimizer(learning_rate=0.1, schedule="linear"), 2)
    weight.grad = torch.ones(1)
    optimizer.skip()
    assert (weight.item(), weight.grad, optimizer.updates) == (1.0, None, 1)
    assert optimizer.learning_rate == pytest.approx(0.05)
