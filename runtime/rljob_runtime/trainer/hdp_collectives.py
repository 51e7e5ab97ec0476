"""Collective calls of the members of a group that gradients pass through.

Guarantees: all members make each call together, forward and backward. A sum over members is computed in
float32 at least.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_runtime.trainer.hdp_groups import Members

# Since torch 2.13 under other names.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def gathered(local: Tensor, members: Members) -> Tensor:
    """All members' `local`, which have one shape: shape (degree, *shape). What each member computes from it
    counts: the gradient of `local` is the sum over all members."""
    result: Tensor = _Gather.apply(local, members, True)  # type: ignore[no-untyped-call]
    return result


def gathered_copies(local: Tensor, members: Members) -> Tensor:
    """Like `gathered`, where each member goes on to compute the same from the result: the gradient of `local`
    is that of this member alone, and needs no call."""
    result: Tensor = _Gather.apply(local, members, False)  # type: ignore[no-untyped-call]
    return result


def exchanged(parts: Tensor, members: Members) -> Tensor:
    """`parts`, shape (degree, …), has a part for each member; the result has each member's part for this
    one."""
    result: Tensor = _Exchange.apply(parts, members)  # type: ignore[no-untyped-call]
    return result


def _swap(parts: Tensor, members: Members) -> Tensor:
    received = torch.empty_like(parts, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, parts.contiguous(), group=members.group)
    return received


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, local: Tensor, members: Members, summed: bool) -> Tensor:
        context.members, context.summed = members, summed
        whole = local.new_empty(members.degree * local.numel())
        _all_gather(whole, local.contiguous().flatten(), group=members.group)
        return whole.view(members.degree, *local.shape)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        members: Members = context.members
        if not context.summed:
            return gradient[members.position], None, None
        # bfloat16 would lose what the other members add.
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32)).contiguous()
        own = wide.new_empty(wide[0].numel())
        _reduce_scatter(own, wide.flatten(), group=members.group)
        return own.view(gradient.shape[1:]).to(gradient.dtype), None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, parts: Tensor, members: Members) -> Tensor:
        context.members = members
        return _swap(parts, members)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _swap(gradient, context.members), None
