"""Causal attention with a cap on its scores, or with a sink beside its keys, in blocks of queries.

With s the products of a query and keys, scaled, c = cap tanh(s / cap), or s where there is no cap, and k the
sink of the head, the result and its gradients are those of FlashAttention-2 (arXiv:2307.08691), with the sink
in the sum alone, for its value is 0:

    L = log(exp(k) + sum exp(c))    p = exp(c - L)    o = p v
    dc = p (do v - do . o)    ds = dc (1 - (c / cap)^2)    dk = -sum over queries of exp(k - L) (do . o)

Guarantees: scores are computed in float32 (float64 for float64 queries); of no more than `_SCORES` are there
copies at a time, or those of one query in each head and sample, forward and backward; the backward pass
computes them again. Operators of torch alone, which every device has.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from rljob_runtime.trainer.log_probs import wide_format

_SCORES = 2**25
"""Numbers: 128 MiB for each copy in float32."""


class Rule(NamedTuple):
    """How a layer weighs keys; as in `AttentionCall`."""

    scaling: float | None
    window: int | None
    cap: float | None


def in_blocks(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, rule: Rule) -> Tensor:
    """Shapes (samples, heads, queries, size), (samples, shared heads, keys, size) and (samples, shared heads,
    keys, size of a value), of which a sample's last query sees all keys, and each before it one less; `sinks`
    as in `AttentionCall`. The result has shape (samples, heads, queries, size of a value)."""
    samples, heads, shared = len(query), query.shape[1], key.shape[1]
    # Queries that share a head of keys stand beside one another: (samples * shared heads, sharing, …).
    q = query.reshape(samples * shared, heads // shared, *query.shape[2:])
    k, v = key.flatten(0, 1), value.flatten(0, 1)
    if sinks is not None:
        sinks = sinks.view(shared, -1).repeat(samples, 1)
    found: Tensor = _Blocks.apply(q, k, v, sinks, rule)  # type: ignore[no-untyped-call]
    return found.view(*query.shape[:3], value.shape[-1])


class _Block(NamedTuple):
    """Some queries, the keys that they see, and how much; shapes begin with (samples * shared heads, …)."""

    rows: slice
    """Of the queries."""
    seen: slice
    """Of the keys."""
    capped: Tensor
    """c, -inf where a query does not see a key; (…, sharing * rows, keys)."""
    tanh: Tensor | None
    """c / cap; None where there is no cap."""


class _Blocks(Function):
    """Shapes (…, sharing, queries, size), (…, keys, size), (…, keys, size of a value) and (…, sharing)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, rule: Rule) -> Tensor:
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        sums = q.new_empty(q.shape[:3], dtype=wide_format(q))
        sunk = None if sinks is None else sinks[..., None].to(sums.dtype).expand(sums.shape)
        for block in _blocks(q, k, rule):
            total = block.capped.logsumexp(-1)
            if sunk is not None:
                total = torch.logaddexp(total, _of_rows(sunk, block))
            p = (block.capped - total[..., None]).exp_().to(v.dtype)
            _put(out, block, _product(p, v[:, block.seen]))
            _put(sums, block, total)
        ctx.rule = rule
        ctx.save_for_backward(q, k, v, sinks, out, sums)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, sums = ctx.saved_tensors
        # do . o of each query.
        along = (slope.to(sums.dtype) * out).sum(-1)
        to_q = torch.empty_like(q)
        to_k, to_v = (torch.zeros_like(each, dtype=sums.dtype) for each in (k, v))
        for block in _blocks(q, k, ctx.rule):
            above = _of_rows(slope, block)
            p = (block.capped - _of_rows(sums, block)[..., None]).exp_()
            to_v[:, block.seen] += _product(p.to(v.dtype).mT, above)
            to_s = p.mul_(_product(above, v[:, block.seen].mT) - _of_rows(along, block)[..., None])
            if block.tanh is not None:
                to_s *= 1 - block.tanh.square()
            to_s = to_s.mul_(_scaling(q, ctx.rule)).to(q.dtype)
            _put(to_q, block, _product(to_s, k[:, block.seen]))
            to_k[:, block.seen] += _product(to_s.mT, _of_rows(q, block))
        to_sinks = None
        if sinks is not None:
            to_sinks = -((sinks[..., None] - sums).exp() * along).sum(-1).to(sinks.dtype)
        return to_q, to_k.to(k.dtype), to_v.to(v.dtype), to_sinks, None


def _blocks(q: Tensor, k: Tensor, rule: Rule) -> Iterator[_Block]:
    queries, keys = q.shape[2], k.shape[1]
    size = max(1, _SCORES // (q.shape[0] * q.shape[1] * keys))
    for start in range(0, queries, size):
        rows = slice(start, min(queries, start + size))
        # The last key that the block's first query sees.
        own = keys - queries + start
        first = 0 if rule.window is None else max(0, own - rule.window + 1)
        seen = slice(first, keys - queries + rows.stop)
        c = _product(q[:, :, rows].flatten(1, 2), k[:, seen].mT).mul_(_scaling(q, rule))
        tanh = None
        if rule.cap is not None:
            tanh = c.div_(rule.cap).tanh_()
            c = tanh * rule.cap
        visible = torch.ones(rows.stop - start, seen.stop - first, dtype=torch.bool, device=q.device)
        visible = visible.tril(own - first)
        if rule.window is not None:
            visible &= ~visible.tril(own - first - rule.window)
        c.masked_fill_(~visible.repeat(q.shape[1], 1), float("-inf"))
        yield _Block(rows, seen, c, tanh)


def _scaling(q: Tensor, rule: Rule) -> float:
    return q.shape[-1] ** -0.5 if rule.scaling is None else rule.scaling


def _of_rows(values: Tensor, block: _Block) -> Tensor:
    """Those of the block's queries: from shape (…, sharing, queries, …) to (…, sharing * rows, …)."""
    return values[:, :, block.rows].flatten(1, 2)


def _put(values: Tensor, block: _Block, found: Tensor) -> None:
    """The other way round."""
    place = values[:, :, block.rows]
    place.copy_(found.view(place.shape))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """In float32 at least."""
    wide = wide_format(left)
    if left.dtype == wide:
        return left @ right
    if left.device.type == "cuda":
        return torch.bmm(left, right, out_dtype=wide)
    return left.to(wide) @ right.to(wide)
