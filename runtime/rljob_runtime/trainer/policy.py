"""The policy as the trainer sees it: log-probabilities and entropies of responses.

Guarantees: log-probabilities are those of the distribution that engines sample from (temperature, top-k and
top-p included), in float32; logits are computed at response positions alone and never held for more than
`_LOGITS` numbers at a time, forward and backward; dropout is off.

Top-k and top-p are applied to the trainer's own distribution. A token that engines drew stays in it always,
so that its log-probability is finite even where other weights would have cut it off.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rljob_api.rollout import Rollout
from rljob_runtime.trainer.packing import Packed

_LOGITS = 2**27
"""Logits that are held at a time, in numbers: 512 MiB in float32."""
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
        return cls(rollout.temperature, rollout.top_k, rollout.top_p)


class Policy(nn.Module):
    """A Hugging Face causal language model that scores packed responses."""

    def __init__(self, model: Any, distribution: Distribution, logits: int = _LOGITS) -> None:
        """`model` was built with `attention.ATTENTION`; `logits`: how many are held at a time, in numbers."""
        super().__init__()
        self.model = model
        self._distribution = distribution
        self._rows = max(1, logits // model.config.get_text_config().vocab_size)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "attention_dropout", None), float):
                module.attention_dropout = 0.0

    def forward(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Log-probability of each response token and entropy of the distribution it was drawn from, both of
        shape (response tokens,), float32."""
        decoder = self.model.get_decoder()
        hidden = decoder(
            input_ids=packed.input_ids,
            position_ids=packed.position_ids,
            use_cache=False,
            packing=packed.layout,
        ).last_hidden_state[0, packed.predicting]
        if len(hidden) <= self._rows:
            return self._score(hidden, packed.targets)
        parts = [
            # Recomputed in the backward pass: the logits of all chunks together would not fit.
            checkpoint(self._score, rows, targets, use_reentrant=False)
            for rows, targets in zip(
                torch.split(hidden, self._rows), torch.split(packed.targets, self._rows), strict=True
            )
        ]
        log_probs, entropies = zip(*parts, strict=True)
        return torch.cat(log_probs), torch.cat(entropies)

    def _score(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model.get_output_embeddings()(hidden).float()
        logits = restrict(logits / self._distribution.temperature, self._distribution, targets)
        total = logits.logsumexp(dim=-1)
        log_probs = logits.gather(1, targets[:, None])[:, 0] - total
        # -sum(p * log p), where log p = logit - total.
        entropy = total - ((logits - total[:, None]).exp() * logits).sum(dim=-1)
        return log_probs, entropy


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
