"""torch's varlen_attn on CPUs, in float64, so that what surrounds the kernel can be tested."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

_OFF = ExitStack()
"""Holds the kernels that are off: one is on again when its context is left or collected."""


@contextmanager
def installed() -> Iterator[None]:
    """varlen_attn runs on CPUs in this process for as long as the body."""
    with ExitStack() as on:
        for operator in _operators():
            on.enter_context(operator.set_kernel_enabled("cpu", enabled=True))
        yield


@cache
def _operators() -> list[Any]:
    """torch's operators, each with a kernel for CPUs that is off."""
    # Imported here: torch knows these operators from then on.
    from torch.nn.attention import varlen

    module: Any = varlen
    kernels = {module._varlen_attn: _forward, module._varlen_attn_backward: _backward}
    for operator, kernel in kernels.items():
        operator.register_kernel("cpu")(kernel)
        # What is registered stays so for the process; this has it off for as long.
        _OFF.enter_context(operator.set_kernel_enabled("cpu", enabled=False))
    return list(kernels)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends: Tensor,
    key_ends: Tensor,
    longest: int,
    longest_key: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: list[int] | None = None,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty_like(query)
    # Of float64 queries in float64, so that what is made of it can be compared exactly.
    wide = torch.promote_types(query.dtype, torch.float32)
    sums = query.new_empty(query.shape[1], query.shape[0], dtype=wide)
    for part in _samples(ends, longest):
        q, k, v = _heads(query, key, value, part)
        scores = _scores(q, k, scale, window_size)
        total = scores.logsumexp(-1)
        out[part] = ((scores - total[..., None]).exp() @ v).transpose(0, 1).to(out.dtype)
        sums[:, part] = total.to(wide)
    return out, sums, torch.zeros(2, dtype=torch.uint64)


def _backward(
    slope: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    ends: Tensor,
    key_ends: Tensor,
    longest: int,
    longest_key: int,
    is_causal: bool,
    state: Tensor,
    scale: float | None = None,
    window_size: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    factor = scale if scale is not None else query.shape[-1] ** -0.5
    gradients = [torch.empty_like(each) for each in (query, key, value)]
    for part in _samples(ends, longest):
        q, k, v = _heads(query, key, value, part)
        above = slope[part].transpose(0, 1).double()
        # As the kernel: from the sums and the results that it is given, whatever they are of.
        p = (_scores(q, k, scale, window_size) - sums[:, part, None]).exp()
        along = (above * out[part].transpose(0, 1)).sum(-1, keepdim=True)
        to_s = p * (above @ v.transpose(1, 2) - along) * factor
        found = to_s @ k, to_s.transpose(1, 2) @ q, p.transpose(1, 2) @ above
        for gradient, each in zip(gradients, found, strict=True):
            # Query heads that share a key head add up.
            shared = each.unflatten(0, (gradient.shape[1], -1)).sum(1)
            gradient[part] = shared.transpose(0, 1).to(gradient.dtype)
    return gradients[0], gradients[1], gradients[2]


def _samples(ends: Tensor, longest: int) -> list[slice]:
    edges = ends.tolist()
    parts = [slice(start, end) for start, end in itertools.pairwise(edges)]
    assert max(part.stop - part.start for part in parts) == longest
    return parts


def _heads(query: Tensor, key: Tensor, value: Tensor, part: slice) -> list[Tensor]:
    """Each of shape (query heads, tokens, size), float64."""
    taken = [each[part].transpose(0, 1).double() for each in (query, key, value)]
    return [each.repeat_interleave(len(taken[0]) // len(each), 0) for each in taken]


def _scores(q: Tensor, k: Tensor, scale: float | None, window: list[int] | None) -> Tensor:
    assert window is not None and window[1] == 0, "the trainer's attention is causal"
    seen = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
    if window[0] >= 0:
        seen &= ~seen.tril(-window[0] - 1)
    factor = scale if scale is not None else q.shape[-1] ** -0.5
    return (q @ k.transpose(1, 2) * factor).masked_fill(~seen, float("-inf"))
