"""Causal attention with a cap on its scores, or with a sink beside its keys, in blocks of queries.

With s the products of a query and keys, scaled, c = cap tanh(s / cap), or s where there is no cap, and k the
sink of the head, the result and its gradients are those of FlashAttention-2 (arXiv:2307.08691), with the sink
in the sum alone, for its value is 0:

    L = log(exp(k) + sum exp(c))    p = exp(c - L)    o = p v
    dc = p (do v - do . o)    ds = dc (1 - (c / cap)^2)    dk = -sum over queries of exp(k - L) (do . o)

Guarantees: scores are computed in float32 (float64 for float64 queries); of no more than `_SCORES` are there
copies at a time, or those of one query in each head, sample and piece, forward and backward; the backward
pass computes them again; of a sample of many windows no more than twice a window's are computed for a query.
Operators of torch alone, which every device has.
"""

from collections.abc import Iterator, Sequence
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


class _Part(NamedTuple):
    """Queries whose keys are few beside all of them, as pieces with as many queries and keys each."""

    pieces: int
    rows: slice
    """Of the queries."""
    seen: slice
    """Of the keys. Each piece has as many of its own as it has queries, and before them those that reach back
    from its first query, which are the last ones of the piece before."""


class _Block(NamedTuple):
    """Some queries of a part, the keys that they see, and how much; shapes begin with (… * pieces, …)."""

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
        for part in _parts(q.shape[2], k.shape[1], rule.window):
            own_q, own_k, own_v = _queries_of(q, part), _keys_of(k, part), _keys_of(v, part)
            own_sunk = None if sunk is None else _queries_of(sunk, part)
            for block in _blocks(own_q, own_k, rule):
                total = block.capped.logsumexp(-1)
                if own_sunk is not None:
                    total = torch.logaddexp(total, _of_rows(own_sunk, block.rows))
                p = (block.capped - total[..., None]).exp_().to(v.dtype)
                _put(_queries_of(out, part), block.rows, _product(p, own_v[:, block.seen]))
                _put(_queries_of(sums, part), block.rows, total)
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
        for part in _parts(q.shape[2], k.shape[1], ctx.rule.window):
            own = [_queries_of(each, part) for each in (q, slope, sums, along, to_q)]
            keys = _keys_of(k, part), _keys_of(v, part)
            found = _part_backward(own, keys, ctx.rule)
            for total, each in zip((to_k, to_v), found, strict=True):
                _add_keys(total, part, each)
        to_sinks = None
        if sinks is not None:
            to_sinks = -((sinks[..., None] - sums).exp() * along).sum(-1).to(sinks.dtype)
        return to_q, to_k.to(k.dtype), to_v.to(v.dtype), to_sinks, None


def _part_backward(own: Sequence[Tensor], keys: tuple[Tensor, Tensor], rule: Rule) -> tuple[Tensor, Tensor]:
    """The gradients of a part's keys and values, in the format of sums. `own`: its queries, the slope, sums,
    do . o, and where the gradients of its queries are put."""
    q, slope, sums, along, to_q = own
    k, v = keys
    to_k, to_v = (torch.zeros_like(each, dtype=sums.dtype) for each in keys)
    for block in _blocks(q, k, rule):
        above = _of_rows(slope, block.rows)
        p = (block.capped - _of_rows(sums, block.rows)[..., None]).exp_()
        to_v[:, block.seen] += _product(p.to(v.dtype).mT, above)
        to_s = p.mul_(_product(above, v[:, block.seen].mT) - _of_rows(along, block.rows)[..., None])
        if block.tanh is not None:
            to_s *= 1 - block.tanh.square()
        to_s = to_s.mul_(_scaling(q, rule)).to(q.dtype)
        _put(to_q, block.rows, _product(to_s, k[:, block.seen]))
        to_k[:, block.seen] += _product(to_s.mT, _of_rows(q, block.rows))
    return to_k, to_v


def _parts(queries: int, keys: int, window: int | None) -> list[_Part]:
    """All queries. Those that see a whole window are cut into pieces of as many, which are computed side by
    side: of a window's keys and those of the next one half are seen, in each piece."""
    before = keys - queries
    whole = _Part(1, slice(0, queries), slice(0, keys))
    if window is None:
        return [whole]
    # The first query that sees a whole window.
    start = max(0, window - 1 - before)
    pieces = (queries - start) // window
    if pieces < 2:
        return [whole]
    end, reach = start + pieces * window, before - window + 1
    parts = [
        _Part(1, slice(0, start), slice(0, before + start)),
        _Part(pieces, slice(start, end), slice(reach + start, before + end)),
        _Part(1, slice(end, queries), slice(reach + end, keys)),
    ]
    return [part for part in parts if part.rows.start < part.rows.stop]


def _queries_of(values: Tensor, part: _Part) -> Tensor:
    """The part's, a view: from shape (…, sharing, queries, …) to (…, pieces, sharing, queries of one, …)."""
    return _split(values[:, :, part.rows], 2, part.pieces).transpose(1, 2)


def _keys_of(values: Tensor, part: _Part) -> Tensor:
    """The part's: from shape (…, keys, size) to (… * pieces, keys of one, size)."""
    own = (part.rows.stop - part.rows.start) // part.pieces
    reached = part.seen.stop - part.seen.start - part.pieces * own
    return values[:, part.seen].unfold(1, reached + own, own).mT.flatten(0, 1)


def _add_keys(total: Tensor, part: _Part, found: Tensor) -> None:
    """The other way round, added up."""
    own = (part.rows.stop - part.rows.start) // part.pieces
    place, found = total[:, part.seen], _split(found, 0, len(total))
    reached = found.shape[2] - own
    _split(place[:, reached:], 1, part.pieces).add_(found[:, :, reached:])
    place[:, :reached].add_(found[:, 0, :reached])
    if part.pieces > 1:
        others = _split(place[:, own : part.pieces * own], 1, part.pieces - 1)
        others[:, :, :reached].add_(found[:, 1:, :reached])


def _split(values: Tensor, dimension: int, parts: int) -> Tensor:
    """A view of a dimension as so many parts, one after the other."""
    before, count, after = values.shape[:dimension], values.shape[dimension], values.shape[dimension + 1 :]
    return values.view(*before, parts, count // parts, *after)


def _blocks(q: Tensor, k: Tensor, rule: Rule) -> Iterator[_Block]:
    """Of a part's queries, (…, pieces, sharing, queries of one, size)."""
    queries, keys = q.shape[3], k.shape[1]
    size = max(1, _SCORES // (len(k) * q.shape[2] * keys))
    for start in range(0, queries, size):
        rows = slice(start, min(queries, start + size))
        # The last key that the block's first query sees.
        own = keys - queries + start
        first = 0 if rule.window is None else max(0, own - rule.window + 1)
        seen = slice(first, keys - queries + rows.stop)
        c = _product(_of_rows(q, rows), k[:, seen].mT).mul_(_scaling(q, rule))
        tanh = None
        if rule.cap is not None:
            tanh = c.div_(rule.cap).tanh_()
            c = tanh * rule.cap
        visible = torch.ones(rows.stop - start, seen.stop - first, dtype=torch.bool, device=q.device)
        visible = visible.tril(own - first)
        if rule.window is not None:
            visible &= ~visible.tril(own - first - rule.window)
        c.masked_fill_(~visible.repeat(q.shape[2], 1), float("-inf"))
        yield _Block(rows, seen, c, tanh)


def _scaling(q: Tensor, rule: Rule) -> float:
    return q.shape[-1] ** -0.5 if rule.scaling is None else rule.scaling


def _of_rows(values: Tensor, rows: slice) -> Tensor:
    """Some of a part's queries: from shape (…, pieces, sharing, queries of one, …) to (… * pieces, sharing *
    rows, …)."""
    return values[:, :, :, rows].flatten(2, 3).flatten(0, 1)


def _put(values: Tensor, rows: slice, found: Tensor) -> None:
    """The other way round."""
    place = values[:, :, :, rows]
    place.copy_(found.view(place.shape))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """In float32 at least."""
    wide = wide_format(left)
    if left.dtype == wide:
        return left @ right
    if left.device.type == "cuda":
        return torch.bmm(left, right, out_dtype=wide)
    return left.to(wide) @ right.to(wide)
