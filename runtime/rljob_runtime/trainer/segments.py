"""Causal attention of runs of queries, each to a run of keys of its own.

Guarantees: the last query of a segment sees its last key, and each query before it one key less; segments
do not see one another; no tokens are padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.trainer.varlen import shared_heads

Kernel = Literal["varlen", "ascend", "rectangles"]
"""What computes attention: kernels for segments of any length, of CUDA GPUs or of Ascend NPUs, or torch's
attention, segment by segment."""
_MASK = 2048
"""Side of the causal mask that Ascend's kernel takes for segments of any length."""
_CAUSAL, _BAND = 3, 4
"""Ascend's names for masks: causal, and causal within a window, both counted from the last query and key."""


@dataclass(frozen=True)
class Segments:
    """How many queries and keys each segment has, one segment after the other."""

    queries: list[int]
    keys: list[int]
    """At least as many as there are queries."""
    query_bounds: Tensor
    """Where segments begin and the last one ends among the queries; shape (segments + 1,), int32."""
    key_bounds: Tensor
    kernel: Kernel

    @classmethod
    def of(
        cls, queries: Sequence[int], keys: Sequence[int], device: torch.device, kernel: Kernel
    ) -> "Segments":
        def bounds(lengths: Sequence[int]) -> Tensor:
            return torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32)).to(device)

        return cls(list(queries), list(keys), bounds(queries), bounds(keys), kernel)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
    ) -> Tensor:
        """Shapes (queries, heads, size), (keys, shared heads, size) and (keys, shared heads, size of a
        value); the result has shape (queries, heads, size of a value). `scaling` and `window` as in
        `AttentionCall`."""
        if self.kernel == "varlen":
            return self._varlen(query, key, value, scaling, window)
        if self.kernel == "ascend":
            return self._ascend(query, key, value, scaling, window)
        parts = []
        for one, others, values in zip(
            torch.split(query, self.queries),
            torch.split(key, self.keys),
            torch.split(value, self.keys),
            strict=True,
        ):
            # From (tokens, heads, size) to (1, heads, tokens, size).
            inputs = [each.transpose(0, 1)[None] for each in (one, others, values)]
            found = F.scaled_dot_product_attention(
                inputs[0], inputs[1], inputs[2],
                attn_mask=_seen(len(one), len(others), window, query.device),
                scale=scaling, enable_gqa=True,
            )  # fmt: skip
            parts.append(found[0].transpose(0, 1))
        return torch.cat(parts)

    def _varlen(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
    ) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        # Keys to the left and to the right of a query's own that it sees; -1 is all.
        sight = (-1 if window is None else window - 1, 0)
        out: Tensor = varlen_attn(
            query, key, value, self.query_bounds, self.key_bounds, max(self.queries), max(self.keys),
            scale=scaling, window_size=sight, **shared_heads(),
        )  # type: ignore[assignment]  # fmt: skip
        return out

    def _ascend(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
    ) -> Tensor:
        import torch_npu

        sight = {"sparse_mode": _CAUSAL}
        if window is not None:
            sight = {"sparse_mode": _BAND, "pre_tockens": window - 1, "next_tockens": 0}
        out = torch_npu.npu_fusion_attention(
            query.contiguous(), key.contiguous(), value.contiguous(), query.shape[1], input_layout="TND",
            atten_mask=torch.ones(_MASK, _MASK, dtype=torch.bool, device=query.device).triu(1),
            scale=scaling if scaling is not None else query.shape[-1] ** -0.5,
            actual_seq_qlen=list(accumulate(self.queries)),
            actual_seq_kvlen=list(accumulate(self.keys)), **sight,
        )  # fmt: skip
        return out[0]  # type: ignore[no-any-return]


def _seen(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """Which keys a query sees; shape (queries, keys), bool."""
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return seen if window is None else seen & ~seen.tril(keys - queries - window)
