"""Log-probabilities and entropies of drawn tokens from hidden states, without the logits of all of them.

With x the logits divided by the temperature (what top-k and top-p leave out far below the others),
p = softmax(x), and H = -sum(p log p):

    log-probability of token t: x_t - logsumexp(x)    its gradient: 1 at t, minus p
    entropy: H = logsumexp(x) - sum(p x)              its gradient: -p (x - sum(p x))

Guarantees: computed in float32 (float64 for float64 hidden states); of no more than `logits` logits are
there copies in the hidden states' format at a time, forward and backward, and of no more than `_SLICE` in
float32; where all logits are more than that, the backward pass computes them again; gradients with respect
to the head's weights are summed in float32 before they are rounded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from rljob_runtime.trainer.distribution import Distribution, restrict

Entropy = Literal["none", "value", "gradient"]
"""Whether entropies are computed: not at all, for their value alone, or so that they can be trained."""

_SLICE = 2**26
"""Logits that are worked on at a time, in numbers: 256 MiB for each copy in float32."""


@dataclass(frozen=True)
class Scoring:
    """How hidden states are scored."""

    distribution: Distribution
    entropy: Entropy
    logits: int
    """How many are held at a time, in numbers."""
    compiled: bool = False
    """Fuse what is done with logits into kernels by torch.compile; not for top-k and top-p."""


class Scores(NamedTuple):
    """Of each token; shape (tokens,), float32."""

    log_probs: Tensor
    entropies: Tensor | None
    """None where they were not asked for."""


def scores(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, how: Scoring) -> Scores:
    """Score tokens `targets`, shape (tokens,), by a linear head on `hidden`, shape (tokens, width).

    `weight` has shape (vocabulary, width), `bias` (vocabulary,).
    """
    log_probs, entropies = _Scores.apply(hidden, weight, bias, targets, how)  # type: ignore[no-untyped-call]
    return Scores(log_probs, None if how.entropy == "none" else entropies)


def plain_scores(logits: Tensor, targets: Tensor, how: Scoring) -> Scores:
    """The same from logits, shape (tokens, vocabulary), with gradients by autograd."""
    logits = restrict(
        logits.to(wide_format(logits)) / how.distribution.temperature, how.distribution, targets
    )
    total = logits.logsumexp(dim=-1)
    log_probs = logits.gather(1, targets[:, None])[:, 0] - total
    if how.entropy == "none":
        return Scores(log_probs, None)
    with torch.set_grad_enabled(torch.is_grad_enabled() and how.entropy == "gradient"):
        # -sum(p * log p), where log p = logit - total.
        entropy = total - ((logits - total[:, None]).exp() * logits).sum(dim=-1)
    return Scores(log_probs, entropy)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, how: Scoring
    ) -> tuple[Tensor, Tensor]:
        wide = wide_format(hidden)
        log_probs, total, mean = (
            torch.empty(len(hidden), dtype=wide, device=hidden.device) for _ in range(3)
        )
        statistics = _statistics_of(weight, how)
        logits = hidden.new_empty(0)
        chunks = list(chunks_of(len(hidden), how.logits // len(weight)))
        for chunk in chunks:
            logits = functional.linear(hidden[chunk], weight, bias)
            for rows, inside in slices_of(chunk, len(weight)):
                log_probs[rows], total[rows], mean[rows] = statistics(logits[inside], targets[rows], how)
        # With a single chunk its logits are as many as may be held, so that they are kept.
        ctx.kept = len(chunks) == 1 and any(ctx.needs_input_grad[:3])
        ctx.how = how
        ctx.save_for_backward(hidden, weight, bias, targets, total, mean, logits if ctx.kept else None)
        entropies = total - mean
        if how.entropy != "gradient":
            ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor, entropy_slope: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, total, mean, kept = ctx.saved_tensors
        how: Scoring = ctx.how
        bend = entropy_slope if how.entropy == "gradient" else None
        for_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for_weight = Sum(weight) if ctx.needs_input_grad[1] else None
        for_bias = Sum(bias) if ctx.needs_input_grad[2] else None
        gradient = _gradient_of(weight, how)
        for chunk in chunks_of(len(hidden), how.logits // len(weight)):
            logits = kept if ctx.kept else functional.linear(hidden[chunk], weight, bias)
            for rows, inside in slices_of(chunk, len(weight)):
                entropic = None if bend is None else (bend[rows], mean[rows])
                # In the logits' own place: they are not needed any more.
                logits[inside] = gradient(
                    logits[inside], targets[rows], total[rows], slope[rows], entropic, how
                )
            if for_hidden is not None:
                for_hidden[chunk] = logits @ weight
            if for_weight is not None:
                for_weight.add_product(logits.T, hidden[chunk])
            if for_bias is not None:
                for_bias.add(logits.sum(0, dtype=total.dtype))
        return (
            for_hidden,
            for_weight.value if for_weight is not None else None,
            for_bias.value if for_bias is not None else None,
            None,
            None,
        )


class Sum:
    """A gradient, summed over chunks in float32 at least."""

    def __init__(self, parameter: Tensor) -> None:
        self._dtype = parameter.dtype
        self._wide = wide_format(parameter)
        self._total: Tensor | None = None

    def add(self, part: Tensor) -> None:
        self._total = part.to(self._wide) if self._total is None else self._total.add_(part)

    def add_product(self, left: Tensor, right: Tensor) -> None:
        if self._dtype == self._wide or left.device.type != "cuda":
            self.add(left @ right)
        elif self._total is None or not _adds_wide(left.device, left.dtype):
            self.add(torch.mm(left, right, out_dtype=self._wide))
        else:
            torch.addmm(self._total, left, right, out_dtype=self._wide, out=self._total)

    @property
    def value(self) -> Tensor | None:
        return None if self._total is None else self._total.to(self._dtype)


@cache
def _adds_wide(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch adds to a float32 matrix what it multiplies in a smaller format; not all versions do."""
    total = torch.zeros(16, 16, device=device)
    factor = torch.eye(16, dtype=dtype, device=device)
    try:
        torch.addmm(total, factor, factor, out_dtype=torch.float32, out=total)
    except RuntimeError:
        return False
    return bool((total == factor).all())


_Statistics = Callable[[Tensor, Tensor, Scoring], tuple[Tensor, Tensor, Tensor]]
_Gradient = Callable[[Tensor, Tensor, Tensor, Tensor, tuple[Tensor, Tensor] | None, Scoring], Tensor]


def statistics_of_logits(logits: Tensor, targets: Tensor, how: Scoring) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of each target, logsumexp(x), and sum(p x), where entropies are asked for."""
    logits = restrict(
        logits.to(wide_format(logits)) / how.distribution.temperature, how.distribution, targets
    )
    total = logits.logsumexp(dim=-1)
    log_probs = logits.gather(1, targets[:, None])[:, 0] - total
    if how.entropy == "none":
        return log_probs, total, total
    return log_probs, total, ((logits - total[:, None]).exp_() * logits).sum(dim=-1)


def gradient_of_logits(
    logits: Tensor,
    targets: Tensor,
    total: Tensor,
    slope: Tensor,
    entropic: tuple[Tensor, Tensor] | None,
    how: Scoring,
) -> Tensor:
    """Gradient with respect to logits, in their format; `slope` is that with respect to log-probabilities,
    `entropic` that with respect to entropies, and sum(p x)."""
    wide = restrict(logits.to(wide_format(logits)) / how.distribution.temperature, how.distribution, targets)
    factor = -slope[:, None]
    if entropic is not None:
        bend, mean = entropic
        factor = factor - bend[:, None] * (wide - mean[:, None])
    gradient = (wide - total[:, None]).exp_().mul_(factor)
    gradient.scatter_add_(1, targets[:, None], slope[:, None])
    return gradient.div_(how.distribution.temperature).to(logits.dtype)


def _fusible_statistics(
    logits: Tensor, targets: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    wide = logits.to(wide_format(logits)) / temperature
    total = wide.logsumexp(dim=-1)
    log_probs = wide.gather(1, targets[:, None])[:, 0] - total
    return log_probs, total, ((wide - total[:, None]).exp() * wide).sum(dim=-1) if entropy else total


def _fusible_gradient(
    logits: Tensor,
    targets: Tensor,
    total: Tensor,
    slope: Tensor,
    entropic: tuple[Tensor, Tensor] | None,
    temperature: float,
) -> Tensor:
    """As `gradient_of_logits`, written so that a compiler makes one kernel of it."""
    wide = logits.to(wide_format(logits)) / temperature
    factor = slope[:, None]
    if entropic is not None:
        bend, mean = entropic
        factor = factor + bend[:, None] * (wide - mean[:, None])
    drawn = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    gradient = torch.where(drawn, slope[:, None], 0.0) - (wide - total[:, None]).exp() * factor
    return (gradient / temperature).to(logits.dtype)


@cache
def _compiled() -> tuple[Any, Any]:
    return _for_any_rows(_fusible_statistics), _for_any_rows(_fusible_gradient)


def _for_any_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled once for any number of rows: micro-batches differ in it, and to compile anew
    takes seconds in the midst of a step."""
    # It takes seconds to import, which only what compiles needs to spend.
    from torch._dynamo import maybe_mark_dynamic

    compiled = torch.compile(function)

    def call(logits: Tensor, *others: Any) -> Any:
        if len(logits) == 1:
            # A size of 1 is always compiled for itself.
            return function(logits, *others)
        for each in tree_leaves((logits, others)):
            if isinstance(each, Tensor):
                maybe_mark_dynamic(each, 0)
        return compiled(logits, *others)

    return call


def _statistics_of(weight: Tensor, how: Scoring) -> _Statistics:
    if not how.compiled or how.distribution.leaves_out(len(weight)):
        return statistics_of_logits
    fused, _ = _compiled()
    temperature, entropy = how.distribution.temperature, how.entropy != "none"
    return lambda logits, targets, _: fused(logits, targets, temperature, entropy)


def _gradient_of(weight: Tensor, how: Scoring) -> _Gradient:
    if not how.compiled or how.distribution.leaves_out(len(weight)):
        return gradient_of_logits
    _, fused = _compiled()
    temperature = how.distribution.temperature
    return lambda logits, targets, total, slope, entropic, _: fused(
        logits, targets, total, slope, entropic, temperature
    )


def wide_format(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def chunks_of(rows: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    return (slice(start, min(rows, start + size)) for start in range(0, rows, size))


def slices_of(chunk: slice, vocabulary: int) -> Iterator[tuple[slice, slice]]:
    """Parts of a chunk that are worked on at a time: their rows in all, and in the chunk."""
    for part in chunks_of(chunk.stop - chunk.start, _SLICE // vocabulary):
        yield slice(chunk.start + part.start, chunk.start + part.stop), part
