"""Causal attention of samples of any lengths with a sink beside the keys, by torch's varlen_attn.

Of the keys alone FlashAttention gives a query's result o0 and L0 = log(sum exp(s)), s the scaled products.
With the sink k of the head, whose value is 0:

    L = log(exp(k) + exp(L0))    o = o0 exp(L0 - L)    dk = -sum over queries of exp(k - L) (do . o)

FlashAttention's backward pass takes o, L and do, and gives, of p = exp(s - L), dv = p do and
ds = p (do v - do . o). With o and L as above these are the gradients where there is a sink: no gradient with
respect to L0 is needed.

Guarantees: nothing of the size of all scores is held; exact but for the rounding of o to its format.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Sight = tuple[int, int]
"""Keys to the left and to the right of a query's own that it sees; -1 is all."""


def sunk_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor,
    ends: tuple[Tensor, Tensor | None],
    longest: tuple[int, int],
    scaling: float | None,
    sight: Sight,
    told: bool,
) -> Tensor:
    """As `varlen.varlen_attention`, with `sinks` of shape (heads,); `ends` and `longest` of queries and
    keys. Where the ends of keys are those of queries they are None: torch.compile takes no tensor twice."""
    out: Tensor = _Sunk.apply(query, key, value, sinks, *ends, *longest, scaling, sight, told)  # type: ignore[no-untyped-call]
    return out


class _Sunk(Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor,
        ends: Tensor,
        key_ends: Tensor | None,
        longest: int,
        longest_key: int,
        scaling: float | None,
        sight: Sight,
        told: bool,
    ) -> Tensor:
        from torch.nn.attention.varlen import AuxRequest, varlen_attn

        options: dict[str, Any] = {"enable_gqa": True} if told else {}
        others = ends if key_ends is None else key_ends
        alone, sums = varlen_attn(
            query, key, value, ends, others, longest, longest_key,
            return_aux=AuxRequest(lse=True), scale=scaling, window_size=sight, **options,
        )  # fmt: skip
        if sums.shape != (query.shape[1], query.shape[0]):
            raise ValueError(f"log-sum-exp of shape {tuple(sums.shape)}: (heads, tokens) was expected")
        # Shape (heads, tokens).
        total = torch.logaddexp(sums, sinks[:, None].to(sums.dtype))
        out = (alone * (sums - total).exp().T[..., None]).to(alone.dtype)
        ctx.save_for_backward(query, key, value, sinks, ends, key_ends, out, total)
        ctx.rest = longest, longest_key, scaling, sight
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, ends, key_ends, out, total = ctx.saved_tensors
        longest, longest_key, scaling, sight = ctx.rest
        # The kernel's state of random numbers, for a dropout that there is not.
        others = ends if key_ends is None else key_ends
        state = torch.zeros(2, dtype=torch.uint64, device=query.device)
        gradients = torch.ops.torch_attn._varlen_attn_backward(
            slope.contiguous(), query, key, value, out, total, ends, others, longest, longest_key,
            sight == (-1, 0), state, scaling, list(sight),
        )  # fmt: skip
        along = (slope.to(total.dtype) * out).sum(-1).T
        to_sinks = -((sinks[:, None].to(total.dtype) - total).exp() * along).sum(-1).to(sinks.dtype)
        return *gradients, to_sinks, *(None,) * 7
