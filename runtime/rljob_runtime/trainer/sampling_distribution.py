"""How tokens are drawn from logits: temperature, top-k, top-p.

Top-k and top-p are applied to the trainer's own distribution. A token that engines drew stays in it always,
so that its log-probability is finite even where other weights would have cut it off.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_api.rollout import Rollout

_OUT = -1e30
"""Logit of a token that is cut off: its probability is exactly 0, and products with it stay finite."""


@dataclass(frozen=True)
class Distribution:
    """How tokens are drawn from logits."""

    temperature: float = 1.0
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    """1 is off."""

    @classmethod
    def of(cls, rollout: Rollout) -> "Distribution":
        return cls(rollout.drawn_at, rollout.top_k, rollout.top_p)

    def leaves_out(self, vocabulary: int) -> bool:
        """Whether some of a `vocabulary` of so many tokens may be cut off."""
        return 0 < self.top_k < vocabulary or self.top_p < 1.0


def restrict(logits: Tensor, distribution: Distribution, drawn: Tensor) -> Tensor:
    """Logits, shape (rows, vocabulary), with what top-k and top-p leave out at `_OUT`; `drawn` stays.

    As the engines do it: the k highest (and ties with the k-th), then of those the smallest set of the most
    probable whose probability reaches top-p.
    """
    if 0 < distribution.top_k < logits.shape[-1]:
        lowest = logits.topk(distribution.top_k, dim=-1).values[:, -1:]
        logits = _cut(logits, logits < lowest, drawn)
    if distribution.top_p < 1.0:
        with torch.no_grad():
            ordered, order = logits.sort(dim=-1, descending=True, stable=True)
            probabilities = ordered.softmax(dim=-1)
            outside = probabilities.cumsum(dim=-1) - probabilities >= distribution.top_p
            outside[:, 0] = False
            # From the sorted order back to that of the vocabulary.
            outside = torch.zeros_like(outside).scatter(1, order, outside)
        logits = _cut(logits, outside, drawn)
    return logits


def _cut(logits: Tensor, outside: Tensor, drawn: Tensor) -> Tensor:
    return logits.masked_fill(outside.scatter(1, drawn[:, None], False), _OUT)
