"""Causal attention of runs of queries, each to a run of keys of its own.

Guarantees: the last query of a segment sees its last key, and each query before it one key less; segments
do not see one another; no tokens are padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.trainer.block_attention import Rule, in_blocks
from rljob_runtime.trainer.varlen import Runs, ascend_attention, varlen_attention, wants_to_be_told

Kernel = Literal["varlen", "ascend", "rectangles"]
"""What computes attention: kernels for segments of any length, of CUDA GPUs or of Ascend NPUs, or torch's
attention, segment by segment."""


@dataclass(frozen=True)
class Segments:
    """How many queries and keys each segment has, one segment after the other."""

    queries: list[int]
    keys: list[int]
    """At least as many as there are queries."""
    query_runs: Runs
    """The same, on the device."""
    key_runs: Runs
    kernel: Kernel

    @classmethod
    def of(
        cls, queries: Sequence[int], keys: Sequence[int], device: torch.device, kernel: Kernel
    ) -> "Segments":
        """Segments of so many queries and keys, which `kernel` computes."""
        return cls(list(queries), list(keys), Runs.of(queries, device), Runs.of(keys, device), kernel)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        window: int | None,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Shapes (queries, heads, size), (keys, shared heads, size) and (keys, shared heads, size of a
        value); the result has shape (queries, heads, size of a value). The rest as in `AttentionCall`."""
        plain = cap is None and sinks is None
        if self.kernel == "varlen" and cap is None:
            runs = self.query_runs, self.key_runs
            return varlen_attention(query, key, value, *runs, scaling, window, wants_to_be_told(), sinks)
        if self.kernel == "ascend" and plain:
            ends, key_ends = (tuple(accumulate(each)) for each in (self.queries, self.keys))
            return ascend_attention(query, key, value, ends, key_ends, scaling, window)
        parts = []
        for one, others, values in zip(
            torch.split(query, self.queries),
            torch.split(key, self.keys),
            torch.split(value, self.keys),
            strict=True,
        ):
            # From (tokens, heads, size) to (1, heads, tokens, size).
            inputs = [each.transpose(0, 1)[None] for each in (one, others, values)]
            if plain:
                found = F.scaled_dot_product_attention(
                    inputs[0], inputs[1], inputs[2],
                    attn_mask=_seen(len(one), len(others), window, query.device),
                    scale=scaling, enable_gqa=True,
                )  # fmt: skip
            else:
                found = in_blocks(inputs[0], inputs[1], inputs[2], sinks, Rule(scaling, window, cap))
            parts.append(found[0].transpose(0, 1))
        return torch.cat(parts)


def _seen(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """Which keys a query sees; shape (queries, keys), bool."""
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return seen if window is None else seen & ~seen.tril(keys - queries - window)
