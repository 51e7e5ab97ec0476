"""Rows of a tensor in another order, whose gradients are rows as well.

By indexing, gradients are added up: a GPU sorts the indices first, and adds what has the same index one after
the other. Where at most one of the copies of a row has a gradient, none of that is needed.
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def rearranged(rows: Tensor, take: Tensor, back: Tensor) -> Tensor:
    """`rows[take]`. Row i of `rows` is at place `back[i]` of the result, and other copies of it, should there
    be any, get a gradient of 0 from whatever uses them."""
    return _Rearranged.apply(rows, take, back)  # type: ignore[no-untyped-call,no-any-return]


def picked(rows: Tensor, take: Tensor) -> Tensor:
    """`rows[take]`, of which none is taken twice."""
    return _Picked.apply(rows, take)  # type: ignore[no-untyped-call,no-any-return]


class _Rearranged(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, take: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return rows.index_select(0, take)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return gradient.index_select(0, back), None, None


class _Picked(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, take: Tensor) -> Tensor:
        ctx.save_for_backward(take)
        ctx.count = len(rows)
        return rows.index_select(0, take)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (take,) = ctx.saved_tensors
        whole = gradient.new_zeros(ctx.count, *gradient.shape[1:])
        return whole.index_copy_(0, take, gradient), None
