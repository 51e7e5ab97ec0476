"""Sums over the ranks of a tensor group, within what a model computes.

Guarantees: all ranks of the group go on with the same numbers, forward and backward; a pass makes the same
sums in the same order on each of them, whatever a rank computed in between.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from torch import Tensor


def added(values: Tensor, group: Any) -> Tensor:
    """What ranks have computed parts of, added; each of them goes on to compute the same with it."""
    found: Tensor = _Added.apply(values, group)  # type: ignore[no-untyped-call]
    return found


def entered(values: Sequence[Tensor], group: Any) -> tuple[Tensor, ...]:
    """What all ranks have alike, for each to compute a part with: gradients are added, those of all `values`
    when the last of them is known, so that ranks add them in one order."""
    found: tuple[Tensor, ...] = _Entered.apply(group, *values)  # type: ignore[no-untyped-call]
    return found


def reached(found: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """`found`, with gradients of zero for `inputs`, of which this rank used none: others of its group wait
    for them."""
    same: Tensor = _Reached.apply(found, *inputs)  # type: ignore[no-untyped-call]
    return same


def _sum(values: Tensor, group: Any) -> Tensor:
    # In the form that torch's compiler takes too.
    total = collectives.all_reduce(values.contiguous(), "sum", group)
    found: Tensor = collectives.wait_tensor(total)  # type: ignore[no-untyped-call]
    return found


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, group: Any) -> Tensor:
        return _sum(values, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Entered(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, group: Any, *values: Tensor) -> tuple[Tensor, ...]:
        context.group = group
        return tuple(each.view_as(each) for each in values)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # Of which inputs gradients are needed all ranks know alike.
        needed = context.needs_input_grad[1:]
        summed = (
            _sum(each, context.group) if wanted else None
            for each, wanted in zip(gradients, needed, strict=True)
        )
        return (None, *summed)


class _Reached(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, found: Tensor, *inputs: Tensor) -> Tensor:
        context.like = [(each.shape, {"dtype": each.dtype, "device": each.device}) for each in inputs]
        return found.view_as(found)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(torch.zeros(shape, **how) for shape, how in context.like)
