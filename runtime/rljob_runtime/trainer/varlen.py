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

from rljob_runtime.trainer.attention_call import AttentionCall
from rljob_runtime.trainer.host_copy import to_device

_MASK = 2048
"""Side of the causal mask that Ascend's kernel takes for samples of any length."""
_CAUSAL, _BAND = 3, 4
"""Ascend's names for what a mask means: causal; causal within a window."""


@dataclass(frozen=True)
class Varlen:
    """A `Layout` of samples one after the other, for torch's varlen_attn."""

    ends: Tensor
    """0 and the end of each sample; shape (samples + 1,), int32."""
    longest: int
    """Tokens of the longest sample."""
    told: bool = False
    """Whether the kernel is to be told that keys and values may have fewer heads (`shared_heads`)."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Varlen":
        """The layout of samples of these lengths, one after the other."""
        ends = np.cumsum([0, *lengths], dtype=np.int32)
        return cls(to_device(ends, device), max(lengths), bool(shared_heads()))

    def attend(self, call: AttentionCall) -> Tensor:
        """See `Layout.attend`."""
        from torch.nn.attention.varlen import varlen_attn

        # From (1, heads, tokens, size) to (tokens, heads, size).
        q, k, v = (each[0].transpose(0, 1) for each in (call.query, call.key, call.value))
        # Keys to the left and to the right of a token that it sees; -1 is all.
        sight = (-1 if call.window is None else call.window - 1, 0)
        options: dict[str, Any] = {"scale": call.scaling, "window_size": sight}
        if self.told:
            options["enable_gqa"] = True
        out: Any = varlen_attn(q, k, v, self.ends, self.ends, self.longest, self.longest, **options)
        whole: Tensor = out[None]
        return whole


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
        import torch_npu

        q, k, v = (each[0].transpose(0, 1).contiguous() for each in (call.query, call.key, call.value))
        sight = {"sparse_mode": _CAUSAL}
        if call.window is not None:
            sight = {"sparse_mode": _BAND, "pre_tockens": call.window - 1, "next_tockens": 0}
        out = torch_npu.npu_fusion_attention(
            q, k, v, q.shape[1], input_layout="TND", atten_mask=_ascend_mask(q.device),
            scale=call.scaling if call.scaling is not None else q.shape[-1] ** -0.5,
            actual_seq_qlen=self.ends, actual_seq_kvlen=self.ends, **sight,
        )  # fmt: skip
        return out[0][None]  # type: ignore[no-any-return]


@cache
def shared_heads() -> dict[str, Any]:
    """Later versions of torch want to be told that keys and values may have fewer heads."""
    from torch.nn.attention.varlen import varlen_attn

    return {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


@cache
def _ascend_mask(device: torch.device) -> Tensor:
    """True where a query must not see a key."""
    return torch.ones(_MASK, _MASK, dtype=torch.bool, device=device).triu(1)
