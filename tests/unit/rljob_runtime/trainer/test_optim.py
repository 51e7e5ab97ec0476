"""The learning rate of each update, and what an update does."""

import math
from typing import Literal

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
    optimizer.clip()
    torch.testing.assert_close(weight.grad, torch.tensor([0.6, -0.8]), rtol=1e-5, atol=0)
    optimizer.step()
    torch.testing.assert_close(weight.data, torch.tensor([1 - 0.05 - 0.1, -2 + 0.1 + 0.1]), rtol=1e-5, atol=0)
    assert weight.grad is None
    assert optimizer.norms() == pytest.approx([5.0])
    assert optimizer.norms() == []


def test_a_skipped_update_moves_the_schedule_alone() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = ScheduledAdamW([weight], Optimizer(learning_rate=0.1, schedule="linear"), 2)
    weight.grad = torch.ones(1)
    optimizer.skip()
    assert (weight.item(), weight.grad, optimizer.updates) == (1.0, None, 1)
    assert optimizer.learning_rate == pytest.approx(0.05)


SHAPES = [(), (1,), (0, 4), (17,), (33, 65)]
SETTINGS = Optimizer(learning_rate=1e-2, weight_decay=0.1, max_grad_norm=1.0)


def drawn(seed: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=generator) for shape in SHAPES]


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(each) for each in drawn(0)]


def unfused(weights: list[torch.nn.Parameter]) -> ScheduledAdamW:
    """With torch's own loop over operations."""
    made = ScheduledAdamW(weights, SETTINGS, None)
    use_loop(made)
    return made


def use_loop(optimizer: ScheduledAdamW) -> None:
    for group in optimizer.adamw.param_groups:
        group["fused"], group["foreach"] = None, False


def update(
    optimizer: ScheduledAdamW, weights: list[torch.nn.Parameter], numbers: range, broken: float | None = None
) -> None:
    """`broken`: a number in the gradients."""
    for number in numbers:
        # Above the norm that is clipped to, and far below it.
        for weight, gradient in zip(weights, drawn(number + 1, (10.0, 1e-4)[number % 2]), strict=True):
            weight.grad = gradient
        if broken is not None:
            weights[-1].grad[3, 5] = broken  # type: ignore[index]
        optimizer.clip()
        optimizer.step()


def params_of(optimizer: ScheduledAdamW) -> list[torch.nn.Parameter]:
    return [each for group in optimizer.adamw.param_groups for each in group["params"]]


def assert_alike(left: ScheduledAdamW, right: ScheduledAdamW) -> None:
    """In weights and state."""
    for one, other in zip(params_of(left), params_of(right), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        states = left.adamw.state[one], right.adamw.state[other]
        assert states[0].keys() == states[1].keys() == {"step", "exp_avg", "exp_avg_sq"}
        for name in states[0]:
            torch.testing.assert_close(states[0][name], states[1][name], rtol=1e-5, atol=1e-9, msg=name)


def test_parameters_in_main_memory_have_the_fused_kernel() -> None:
    optimizer = ScheduledAdamW(parameters(), SETTINGS, None)
    assert [group["fused"] for group in optimizer.adamw.param_groups] == [True]


def test_the_fused_kernel_makes_the_updates_of_the_plain_loop() -> None:
    mine, theirs = parameters(), parameters()
    fused, plain = ScheduledAdamW(mine, SETTINGS, None), unfused(theirs)
    update(fused, mine, range(100))
    update(plain, theirs, range(100))
    assert_alike(fused, plain)


NONE, NAN, INF = None, float("nan"), float("inf")
BROKEN: dict[str, tuple[tuple[float | None, ...], int]] = {
    # By update one number of its gradient, where it is not finite; how many updates are made before the first
    "none of them": ((NONE, NONE, NONE), 3),
    "the first of all": ((NAN, NONE), 0),
    "one between others": ((NONE, INF, NONE), 1),
    "the last": ((NONE, NONE, NAN), 2),
    "two, of which the first counts": ((NONE, -INF, NAN, NONE), 1),
}
FORMS: dict[str, tuple[Literal["float32", "bfloat16"], bool]] = {
    "the fused kernel, which decides": ("float32", True),
    "torch's loop": ("float32", False),
    "moments in bfloat16": ("bfloat16", False),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", BROKEN)
def test_from_a_gradient_that_is_not_finite_on_nothing_changes(case: str, form: str) -> None:
    """Not by a bit, until that was told."""
    numbers, made = BROKEN[case]
    states, fused = FORMS[form]
    settings = SETTINGS.model_copy(update={"state_format": states, "schedule": "linear", "warmup_updates": 2})
    mine, theirs = parameters(), parameters()
    found, expected = (ScheduledAdamW(each, settings, 10) for each in (mine, theirs))
    if states == "float32" and not fused:
        use_loop(found)
        use_loop(expected)
    update(expected, theirs, range(made))
    for number, broken in enumerate(numbers):
        update(found, mine, range(number, number + 1), broken)
    told, norms = found.norms(), expected.norms()
    assert told[:made] == norms and all(map(math.isfinite, norms))
    assert [math.isfinite(each) for each in told[made:]] == [False] * (made < len(numbers))
    assert_identical(found, expected)
    # The next one is made as if none of those had been tried.
    for optimizer, weights in ((found, mine), (expected, theirs)):
        update(optimizer, weights, range(7, 8))
    assert_identical(found, expected)


def assert_identical(left: ScheduledAdamW, right: ScheduledAdamW) -> None:
    """In weights, moments, counts of updates and learning rate. Moments that are not made yet are 0."""
    assert (left.updates, left.learning_rate) == (right.updates, right.learning_rate)
    for one, other in zip(params_of(left), params_of(right), strict=True):
        assert torch.equal(one, other)
        for name in ("step", "exp_avg", "exp_avg_sq"):
            states = [opt.adamw.state[each].get(name) for opt, each in ((left, one), (right, other))]
            values = [torch.zeros(()) if each is None else each for each in states]
            assert torch.equal(*torch.broadcast_tensors(*values)), name


@pytest.mark.parametrize("saved_fused", [True, False])
def test_a_saved_state_of_either_form_goes_on_in_the_other(saved_fused: bool) -> None:
    first, through = parameters(), parameters()
    before, whole = ScheduledAdamW(first, SETTINGS, None), ScheduledAdamW(through, SETTINGS, None)
    if not saved_fused:
        use_loop(before)
    update(before, first, range(5))
    update(whole, through, range(10))
    second = [torch.nn.Parameter(each.detach().clone()) for each in first]
    after = ScheduledAdamW(second, SETTINGS, None)
    own = after.adamw.param_groups[0]["fused"]
    after.adamw.load_state_dict(before.adamw.state_dict())
    # As a loaded checkpoint leaves it: the job's settings hold, and not those of what was saved.
    after.adamw.param_groups[0]["fused"] = own
    if saved_fused:
        use_loop(after)
    update(after, second, range(5, 10))
    assert_alike(after, whole)
