"""Embeddings and output head of which each rank of a tensor group has a part of the vocabulary.

A rank looks up the tokens that are its own, and the ranks add what they found, of which one is not zero. Of
the logits a rank has those of its own tokens. With x the logits divided by the temperature,
t_r = logsumexp(x) and m_r = sum(softmax(x) x) over a rank's own tokens, and t = logsumexp over ranks of t_r,

    log-probability of a token: its x, which one rank has, minus t
    sum(p x) over all tokens: sum over ranks of exp(t_r - t) m_r

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
from torch.nn import functional

from rljob_runtime.parallel.rank_layout import TENSOR
from rljob_runtime.trainer.log_probs import (
    Scores,
    Scoring,
    Sum,
    chunks_of,
    gradient_of_logits,
    slices_of,
    statistics_of_logits,
    wide_format,
)

# Since torch 2.13 under another name.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class Part:
    """A rank's part of the vocabulary."""

    group: Any
    """The ranks' process group."""
    ranks: int
    first: int
    """Its first token."""
    size: int
    """How many tokens it has, as every rank does."""

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
        return cls(mesh.get_group(), mesh.size(), mesh.get_local_rank() * size, size)

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
    added: Tensor = _Added.apply(found * inside[..., None], part.group)  # type: ignore[no-untyped-call]
    return added


class _Added(torch.autograd.Function):
    """Added over ranks, each of which goes on to compute the same."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: Any) -> Tensor:
        total = values.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def scores_of_parts(hidden: Tensor, head: nn.Linear, targets: Tensor, how: Scoring) -> Scores:
    """As `log_probs.scores`, by a head of which this rank has a part. All ranks of the group together."""
    part = Part.of(head.weight)
    assert part is not None
    bias = None if head.bias is None else own_numbers(head.bias)
    arguments = hidden, own_numbers(head.weight), bias, targets, how, part
    log_probs, entropies = _PartScores.apply(*arguments)  # type: ignore[no-untyped-call]
    return Scores(log_probs, None if how.entropy == "none" else entropies)


class _PartScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        how: Scoring,
        part: Part,
    ) -> tuple[Tensor, Tensor]:
        found = torch.empty(3, len(hidden), dtype=wide_format(hidden), device=hidden.device)
        whole = how.distribution.leaves_out(part.ranks * part.size)
        logits = hidden.new_empty(0)
        chunks = list(chunks_of(len(hidden), how.logits // part.size))
        for chunk in chunks:
            logits = functional.linear(hidden[chunk], weight, bias)
            for rows, inside in slices_of(chunk, part.size * (part.ranks if whole else 1)):
                if whole:
                    all_logits = _all_logits(logits[inside], part)
                    found[:, rows] = torch.stack(statistics_of_logits(all_logits, targets[rows], how))
                else:
                    found[:, rows] = _statistics(logits[inside], targets[rows], how, part)
        log_probs, total, mean = found if whole else _together(part.gathered(found))
        ctx.kept = len(chunks) == 1 and any(ctx.needs_input_grad[:3])
        ctx.how, ctx.part, ctx.whole = how, part, whole
        ctx.save_for_backward(hidden, weight, bias, targets, total, mean, logits if ctx.kept else None)
        entropies = total - mean
        if how.entropy != "gradient":
            ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor, entropy_slope: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, total, mean, kept = ctx.saved_tensors
        how, part = ctx.how, ctx.part
        bend = entropy_slope if how.entropy == "gradient" else None
        for_hidden = torch.empty(hidden.shape, dtype=wide_format(hidden), device=hidden.device)
        for_weight = Sum(weight) if ctx.needs_input_grad[1] else None
        for_bias = Sum(bias) if ctx.needs_input_grad[2] else None
        for chunk in chunks_of(len(hidden), how.logits // part.size):
            logits = kept if ctx.kept else functional.linear(hidden[chunk], weight, bias)
            for rows, inside in slices_of(chunk, part.size * (part.ranks if ctx.whole else 1)):
                entropic = None if bend is None else (bend[rows], mean[rows])
                given = targets[rows], total[rows], slope[rows], entropic, how
                if ctx.whole:
                    of_all = gradient_of_logits(_all_logits(logits[inside], part), *given)
                    logits[inside] = of_all[:, part.first : part.first + part.size]
                else:
                    logits[inside] = _gradient(logits[inside], *given, part)
            for_hidden[chunk] = logits @ weight
            if for_weight is not None:
                for_weight.add_product(logits.T, hidden[chunk])
            if for_bias is not None:
                for_bias.add(logits.sum(0, dtype=total.dtype))
        if ctx.needs_input_grad[0]:
            dist.all_reduce(for_hidden, group=part.group)
        return (
            for_hidden.to(hidden.dtype) if ctx.needs_input_grad[0] else None,
            for_weight.value if for_weight is not None else None,
            for_bias.value if for_bias is not None else None,
            *(None, None, None),
        )


def _all_logits(logits: Tensor, part: Part) -> Tensor:
    """Of all tokens of the vocabulary; shape (rows, vocabulary)."""
    return part.gathered(logits).transpose(0, 1).flatten(1)


def _statistics(logits: Tensor, targets: Tensor, how: Scoring, part: Part) -> Tensor:
    """Of this rank's tokens: x of each target that is one of them, else 0; logsumexp(x); and, where entropies
    are asked for, the mean of x by its softmax. Shape (3, rows)."""
    x = logits.to(wide_format(logits)) / how.distribution.temperature
    places, inside = part.own(targets)
    total = x.logsumexp(dim=-1)
    drawn = x.gather(1, places[:, None])[:, 0] * inside
    mean = ((x - total[:, None]).exp_() * x).sum(dim=-1) if how.entropy != "none" else total
    return torch.stack([drawn, total, mean])


def _together(parts: Tensor) -> Tensor:
    """Of what ranks have, shape (ranks, 3, tokens): log-probabilities, logsumexp(x), and sum(p x)."""
    drawn, totals, means = parts.unbind(1)
    total = totals.logsumexp(0)
    return torch.stack([drawn.sum(0) - total, total, ((totals - total).exp() * means).sum(0)])


def _gradient(
    logits: Tensor,
    targets: Tensor,
    total: Tensor,
    slope: Tensor,
    entropic: tuple[Tensor, Tensor] | None,
    how: Scoring,
    part: Part,
) -> Tensor:
    """As `gradient_of_logits`, of this rank's logits."""
    x = logits.to(wide_format(logits)) / how.distribution.temperature
    factor = -slope[:, None]
    if entropic is not None:
        bend, mean = entropic
        factor = factor - bend[:, None] * (x - mean[:, None])
    gradient = (x - total[:, None]).exp_().mul_(factor)
    places, inside = part.own(targets)
    gradient.scatter_add_(1, places[:, None], (slope * inside)[:, None])
    return gradient.div_(how.distribution.temperature).to(logits.dtype)
