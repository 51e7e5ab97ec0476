"""Attention over packed samples as they are, by kernels that take samples of various lengths.

On CUDA GPUs torch's varlen_attn (FlashAttention-2, arXiv:2307.08691); on Ascend NPUs torch_npu's
npu_fusion_attention.
"""

import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.trainer.attention_call import AttentionCall
from rljob_runtime.trainer.host_copy import to_device
from rljob_runtime.trainer.varlen_sinks import sunk_attention

_MASK = 2048
"""Side of the causal mask that Ascend's kernel takes for samples of any length."""
_CAUSAL, _BAND = 3, 4
"""Ascend's names for what a mask means: causal; causal within a window. Both count from a sample's last query
and key."""


@dataclass(frozen=True)
class Runs:
    """Tokens of samples one after the other, for torch's varlen_attn."""

    ends: Tensor
    """0 and the end of each sample; shape (samples + 1,), int32."""
    longest: int
    """Tokens of the longest sample."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Runs":
        """Samples of these lengths."""
        return cls(to_device(np.cumsum([0, *lengths], dtype=np.int32), device), max(lengths))


@dataclass(frozen=True)
class Varlen:
    """A `Layout` of samples one after the other, for torch's varlen_attn."""

    runs: Runs
    told: bool = False
    """As of `varlen_attention`."""
    sunk: bool = False
    """Whether it takes sinks."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Varlen":
        """The layout of samples of these lengths, one after the other."""
        return cls(Runs.of(lengths, device), wants_to_be_told())

    @classmethod
    def with_sinks(cls, lengths: Sequence[int], device: torch.device) -> "Varlen":
        """The same for a model with sinks."""
        return cls(Runs.of(lengths, device), wants_to_be_told(), sunk=True)

    def attend(self, call: AttentionCall) -> Tensor:
        """See `Layout.attend`."""
        _check(call, sinks=self.sunk)
        # From (1, heads, tokens, size) to (tokens, heads, size).
        q, k, v = (each[0].transpose(0, 1) for each in (call.query, call.key, call.value))
        how = call.scaling, call.window, self.told, call.sinks
        return varlen_attention(q, k, v, self.runs, self.runs, *how)[None]


@dataclass(frozen=True)
class AscendVarlen:
    """A `Layout` of samples one after the other, for torch_npu's npu_fusion_attention."""

    ends: tuple[int, ...]
    """The end of each sample."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "AscendVarlen":
        """The layout of samples of these lengths, one after the other."""
        return cls(tuple(itertools.accumulate(lengths)))

    def attend(self, call: AttentionCall) -> Tensor:
        """See `Layout.attend`."""
        _check(call, sinks=False)
        q, k, v = (each[0].transpose(0, 1) for each in (call.query, call.key, call.value))
        return ascend_attention(q, k, v, self.ends, self.ends, call.scaling, call.window)[None]


def _check(call: AttentionCall, sinks: bool) -> None:
    """Raise `UnsupportedModel` for what `Heads` was not told of: then other layouts are taken. `sinks`:
    whether the kernel serves with them."""
    if call.cap is not None or (call.sinks is not None and not sinks):
        what = "a cap of scores" if call.cap is not None else "sinks"
        raise UnsupportedModel(
            f"{type(call.module).__name__}: attention with {what}, in a kernel that does not know it: set "
            "training.compute.attention: rectangles"
        )


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Runs,
    keys: Runs,
    scaling: float | None,
    window: int | None,
    told: bool,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of each sample's `queries` to its `keys`, the last query to all of them; `told`:
    whether torch is to be told that keys and values may have fewer heads (`wants_to_be_told`).

    Shapes (queries, heads, size), (keys, shared heads, size) and (keys, shared heads, size); the result has
    that of `query`. `scaling`, `window` and `sinks` as in `AttentionCall`.
    """
    from torch.nn.attention.varlen import varlen_attn

    # Keys to the left and to the right of a query's own that it sees; -1 is all.
    sight = (-1 if window is None else window - 1, 0)
    if sinks is not None:
        other_ends = None if keys is queries else keys.ends
        ends, longest = (queries.ends, other_ends), (queries.longest, keys.longest)
        return sunk_attention(query, key, value, sinks, ends, longest, scaling, sight, told)
    options: dict[str, Any] = {"scale": scaling, "window_size": sight}
    if told:
        options["enable_gqa"] = True
    out: Any = varlen_attn(
        query, key, value, queries.ends, keys.ends, queries.longest, keys.longest, **options
    )
    whole: Tensor = out
    return whole


def ascend_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Sequence[int],
    key_ends: Sequence[int],
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """As `varlen_attention`, with the end of each sample's queries and keys, on an Ascend NPU."""
    import torch_npu

    sight = {"sparse_mode": _CAUSAL}
    if window is not None:
        sight = {"sparse_mode": _BAND, "pre_tockens": window - 1, "next_tockens": 0}
    out = torch_npu.npu_fusion_attention(
        query.contiguous(), key.contiguous(), value.contiguous(), query.shape[1], input_layout="TND",
        atten_mask=_ascend_mask(query.device),
        scale=scaling if scaling is not None else query.shape[-1] ** -0.5,
        actual_seq_qlen=query_ends, actual_seq_kvlen=key_ends, **sight,
    )  # fmt: skip
    return out[0]  # type: ignore[no-any-return]


@cache
def wants_to_be_told() -> bool:
    """Whether this version of torch wants to be told that keys and values may have fewer heads; later ones
    do."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


@cache
def _ascend_mask(device: torch.device) -> Tensor:
    """True where a query must not see a key."""
    return torch.ones(_MASK, _MASK, dtype=torch.bool, device=device).triu(1)
