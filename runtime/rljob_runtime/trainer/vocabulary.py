"""Embeddings and output head of which each rank of a tensor group has a part of the vocabulary.

A rank looks up the tokens that are its own, and the ranks add what they found, of which one is not zero. Of
the logits a rank has those of its own tokens. With x as in `log_probs`,
t_r = logsumexp(x) and h_r, the entropy of softmax(x), over a rank's own tokens, and t = logsumexp over ranks
of t_r,

    log-probability of a token: its x, which one rank has, minus t
    entropy over all tokens: sum over ranks of exp(t_r - t) (h_r + t - t_r)

so that ranks exchange three numbers for each token of a pass, and backward the gradients of hidden states.

Guarantees: as of `log_probs`; all ranks of the group get the same results and the same gradients of hidden
states, and each those of its own weights. Where top-k and top-p may cut tokens off, which depends on all
logits, the ranks gather those of a slice of the tokens at a time instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from rljob_runtime.parallel.rank_layout import TENSOR
from rljob_runtime.trainer.log_probs import (
    Scores,
    Scoring,
    Slopes,
    Vocabulary,
    entropy_of,
    gradient_of_logits,
    gradient_of_x,
    scores,
    statistics_of_logits,
    through_x,
    wide_format,
)
from rljob_runtime.trainer.tensor_sums import added

# Since torch 2.13 under another name.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class Part(Vocabulary):
    """A rank's part of the vocabulary, of `size` tokens on every rank."""

    group: Any
    """The ranks' process group."""
    ranks: int
    first: int
    """Its first token."""

    @classmethod
    def of(cls, weight: Tensor) -> "Part | None":
        """The part that this rank of a tensor group has of embeddings or of a head, which are gathered from
        the ranks with other samples; None where it has all."""
        if not isinstance(weight, DTensor) or not any(isinstance(each, Shard) for each in weight.placements):
            return None
        mesh: Any = weight.device_mesh
        if mesh.mesh_dim_names != (TENSOR,):
            return None
        size = weight.shape[0] // mesh.size()
        return cls(size, mesh.get_group(), mesh.size(), mesh.get_local_rank() * size)

    def own(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Where each token stands among this rank's, and whether it is one of them."""
        places = tokens - self.first
        inside = (places >= 0) & (places < self.size)
        return torch.where(inside, places, 0), inside

    def gathered(self, values: Tensor) -> Tensor:
        """Every rank's values, shape (ranks, …)."""
        whole = values.new_empty(self.ranks * values.numel())
        _all_gather(whole, values.contiguous().flatten(), group=self.group)
        return whole.view(self.ranks, *values.shape)

    def width(self, how: Scoring) -> int:
        """As of `Vocabulary`."""
        return self.size * self.ranks if self._needs_all(how) else self.size

    def statistics(self, logits: Tensor, targets: Tensor, how: Scoring) -> Tensor:
        """x of each target that is one of this rank's tokens, else 0; logsumexp(x) and the entropy of
        softmax(x) over these tokens, 0 where no entropies are asked for."""
        if self._needs_all(how):
            return statistics_of_logits(self._all_logits(logits), targets, how)
        x = how.x(logits)
        places, inside = self.own(targets)
        total = x.logsumexp(dim=-1)
        drawn = x.gather(1, places[:, None])[:, 0] * inside
        entropy = entropy_of(x, total) if how.entropy != "none" else torch.zeros_like(total)
        return torch.stack([drawn, total, entropy])

    def together(self, found: Tensor, how: Scoring) -> Tensor:
        """Of all ranks' tokens."""
        if self._needs_all(how):
            return found
        drawn, totals, entropies = self.gathered(found).unbind(1)
        total = totals.logsumexp(0)
        less = total - totals
        entropy = ((-less).exp() * (entropies + less)).sum(0)
        return torch.stack([drawn.sum(0) - total, total, entropy])

    def gradient(self, logits: Tensor, given: Slopes, how: Scoring) -> Tensor:
        """With respect to this rank's logits."""
        if self._needs_all(how):
            of_all = gradient_of_logits(self._all_logits(logits), given, how)
            return of_all[:, self.first : self.first + self.size]
        x = how.x(logits)
        places, inside = self.own(given.targets)
        gradient = gradient_of_x(x, given, places, given.log_probs * inside)
        return through_x(gradient, x, how).to(logits.dtype)

    def summed(self, grad_hidden: Tensor) -> Tensor:
        """Over all ranks, in float32 at least."""
        total = grad_hidden.to(wide_format(grad_hidden), copy=True)
        dist.all_reduce(total, group=self.group)
        return total.to(grad_hidden.dtype)

    def _needs_all(self, how: Scoring) -> bool:
        """Whether it takes the logits of all tokens to know which may be drawn."""
        return how.distribution.leaves_out(self.ranks * self.size)

    def _all_logits(self, logits: Tensor) -> Tensor:
        """Of all tokens of the vocabulary; shape (rows, vocabulary)."""
        return self.gathered(logits).transpose(0, 1).flatten(1)


def own_numbers(weight: Tensor) -> Tensor:
    """A rank's part of a weight, with its gradients."""
    assert isinstance(weight, DTensor)
    found: Tensor = weight.to_local(grad_placements=[Shard(0)])
    return found


def embed(module: nn.Embedding, forward: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """What `module`, whose own `forward` this is, gives for tokens of any rank."""
    weight, padding = module.weight, module.padding_idx
    part = Part.of(weight)
    assert part is not None
    places, inside = part.own(tokens)
    # The row of padding gets no gradient; it is another rank's, or has another number here.
    here = padding is not None and 0 <= padding - part.first < part.size
    kept = module._parameters["weight"]
    module._parameters["weight"] = own_numbers(weight)  # type: ignore[assignment]
    module.padding_idx = padding - part.first if padding is not None and here else None
    try:
        found = forward(places)
    finally:
        module._parameters["weight"], module.padding_idx = kept, padding
    return added(found * inside[..., None], part.group)


def scores_of_parts(hidden: Tensor, head: nn.Linear, targets: Tensor, how: Scoring) -> Scores:
    """As `log_probs.scores`, by a head of which this rank has a part. All ranks of the group together."""
    bias = None if head.bias is None else own_numbers(head.bias)
    return scores(hidden, own_numbers(head.weight), bias, targets, how, Part.of(head.weight))
