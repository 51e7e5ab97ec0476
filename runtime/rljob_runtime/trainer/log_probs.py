"""Log-probabilities and entropies of drawn tokens from hidden states, without the logits of all of them.

With x the logits, capped where the model has a cap, divided by the temperature (what top-k and top-p leave
out far below the others), p = softmax(x), and H = -sum(p log p):

    log-probability of token t: x_t - logsumexp(x)    its gradient: 1 at t, minus p
    entropy: H = sum(p (logsumexp(x) - x))            its gradient: -p (x - (logsumexp(x) - H))

All terms of H are positive, and as large as H. logsumexp(x) - sum(p x) is the same in theory, but the
difference of two numbers as large as x, of which rounding leaves little where the temperature is low.

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

from rljob_runtime.trainer.sampling_distribution import Distribution, restrict

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
    cap: float | None = None
    """What the head gives, z, becomes cap * tanh(z / cap)."""

    def x(self, logits: Tensor) -> Tensor:
        """What softmax is taken of, with nothing left out, from what the head gives; in float32 at least."""
        return _x(logits, self.distribution.temperature, self.cap)


class Scores(NamedTuple):
    """Of each token; shape (tokens,), float32."""

    log_probs: Tensor
    entropies: Tensor | None
    """None where they were not asked for."""


class Slopes(NamedTuple):
    """What the gradient with respect to logits follows from, for each row."""

    targets: Tensor
    total: Tensor
    """logsumexp(x)"""
    entropy: Tensor
    """H"""
    log_probs: Tensor
    """Gradients with respect to log-probabilities."""
    entropies: Tensor | None
    """The same with respect to entropies; None where these are not trained."""

    def of(self, rows: slice) -> "Slopes":
        """Those of some rows."""
        return Slopes(*(None if each is None else each[rows] for each in self))  # type: ignore[arg-type]


def scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    how: Scoring,
    vocabulary: "Vocabulary | None" = None,
) -> Scores:
    """Score tokens `targets`, shape (tokens,), by a linear head on `hidden`, shape (tokens, width).

    `weight` has shape (size, width), `bias` (size,), for the tokens of `vocabulary`, by default all.
    """
    arguments = hidden, weight, bias, targets, how, vocabulary or Vocabulary(len(weight))
    log_probs, entropies = _Scores.apply(*arguments)  # type: ignore[no-untyped-call]
    return Scores(log_probs, None if how.entropy == "none" else entropies)


def plain_scores(logits: Tensor, targets: Tensor, how: Scoring) -> Scores:
    """The same from logits, shape (tokens, vocabulary), with gradients by autograd."""
    logits = restrict(how.x(logits), how.distribution, targets)
    total = logits.logsumexp(dim=-1)
    log_probs = logits.gather(1, targets[:, None])[:, 0] - total
    if how.entropy == "none":
        return Scores(log_probs, None)
    with torch.set_grad_enabled(torch.is_grad_enabled() and how.entropy == "gradient"):
        surprise = total[:, None] - logits
        entropy = ((-surprise).exp() * surprise).sum(dim=-1)
    return Scores(log_probs, entropy)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        how: Scoring,
        vocabulary: "Vocabulary",
    ) -> tuple[Tensor, Tensor]:
        found = torch.empty(3, len(hidden), dtype=wide_format(hidden), device=hidden.device)
        chunks = list(_chunks(len(hidden), how.logits // len(weight)))
        # With a single chunk its logits are as many as may be held, so that they are kept.
        ctx.kept = len(chunks) == 1 and any(ctx.needs_input_grad[:3])
        kept = None
        for chunk in chunks:
            logits = functional.linear(hidden[chunk], weight, bias)
            for rows, inside in _slices(chunk, vocabulary.width(how)):
                found[:, rows] = vocabulary.statistics(logits[inside], targets[rows], how)
            if ctx.kept:
                kept = logits
            # A name that still held them would keep them beside the next chunk's.
            del logits
        log_probs, total, entropies = vocabulary.together(found, how)
        ctx.how, ctx.vocabulary = how, vocabulary
        ctx.save_for_backward(hidden, weight, bias, targets, total, entropies, kept)
        # Not views, behind which FSDP may miss the beginning of the backward pass.
        log_probs, entropies = log_probs.clone(), entropies.clone()
        if how.entropy != "gradient":
            ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_log_probs: Tensor, grad_entropies: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, total, entropy, kept = ctx.saved_tensors
        how, vocabulary = ctx.how, ctx.vocabulary
        trained = grad_entropies if how.entropy == "gradient" else None
        slopes = Slopes(targets, total, entropy, grad_log_probs, trained)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = Sum(weight) if ctx.needs_input_grad[1] else None
        grad_bias = Sum(bias) if ctx.needs_input_grad[2] else None
        for chunk in _chunks(len(hidden), how.logits // len(weight)):
            logits = kept if ctx.kept else functional.linear(hidden[chunk], weight, bias)
            for rows, inside in _slices(chunk, vocabulary.width(how)):
                # In the logits' own place: they are not needed any more.
                logits[inside] = vocabulary.gradient(logits[inside], slopes.of(rows), how)
            if ctx.needs_input_grad[0]:
                grad_hidden[chunk] = logits @ weight
            if grad_weight is not None:
                grad_weight.add_product(logits.T, hidden[chunk])
            if grad_bias is not None:
                grad_bias.add(logits.sum(0, dtype=total.dtype))
            del logits
        return (
            vocabulary.summed(grad_hidden) if ctx.needs_input_grad[0] else None,
            grad_weight.value if grad_weight is not None else None,
            grad_bias.value if grad_bias is not None else None,
            *(None, None, None),
        )


class Sum:
    """A gradient, summed over chunks in float32 at least."""

    def __init__(self, parameter: Tensor) -> None:
        self._dtype = parameter.dtype
        self._wide = wide_format(parameter)
        self._total: Tensor | None = None

    def add(self, part: Tensor) -> None:
        """Add what a chunk gives."""
        self._total = part.to(self._wide) if self._total is None else self._total.add_(part)

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """Add `left` @ `right`, without rounding the product where the device can."""
        if self._dtype == self._wide or left.device.type != "cuda":
            self.add(left @ right)
        elif self._total is None or not _adds_wide(left.device, left.dtype):
            self.add(torch.mm(left, right, out_dtype=self._wide))
        else:
            torch.addmm(self._total, left, right, out_dtype=self._wide, out=self._total)

    @property
    def value(self) -> Tensor | None:
        """In the parameter's format; None where nothing was added."""
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


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that this rank has logits of, and what it makes of them: all tokens here, a part of them in
    `vocabulary.Part`. Logits have shape (rows, size)."""

    size: int
    """How many tokens they are."""

    def width(self, how: Scoring) -> int:
        """Numbers of a row that are worked on at a time."""
        return self.size

    def statistics(self, logits: Tensor, targets: Tensor, how: Scoring) -> Tensor:
        """Three numbers for each row, from which `together` makes those of all tokens; shape (3, rows)."""
        if self._fused(how):
            fused, _ = _compiled()
            scaled = how.distribution.temperature, how.cap
            return torch.stack(fused(logits, targets, *scaled, how.entropy != "none"))
        return statistics_of_logits(logits, targets, how)

    def together(self, found: Tensor, how: Scoring) -> Tensor:
        """For each row the log-probability of the target, logsumexp(x), and H, 0 where no entropies are asked
        for; shape (3, rows)."""
        return found

    def gradient(self, logits: Tensor, given: Slopes, how: Scoring) -> Tensor:
        """The gradient with respect to the logits, in their format."""
        if self._fused(how):
            _, fused = _compiled()
            found: Tensor = fused(logits, *given, how.distribution.temperature, how.cap)
            return found
        return gradient_of_logits(logits, given, how)

    def summed(self, grad_hidden: Tensor) -> Tensor:
        """The gradient with respect to hidden states, from what this rank's logits give of it."""
        return grad_hidden

    def _fused(self, how: Scoring) -> bool:
        return how.compiled and not how.distribution.leaves_out(self.size)


def statistics_of_logits(logits: Tensor, targets: Tensor, how: Scoring) -> Tensor:
    """What `Vocabulary.together` gives, from the logits of all tokens."""
    logits = restrict(how.x(logits), how.distribution, targets)
    total = logits.logsumexp(dim=-1)
    log_probs = logits.gather(1, targets[:, None])[:, 0] - total
    entropy = entropy_of(logits, total) if how.entropy != "none" else torch.zeros_like(total)
    return torch.stack([log_probs, total, entropy])


def entropy_of(x: Tensor, total: Tensor) -> Tensor:
    """H of each row, where `total` is logsumexp(x). Overwrites x."""
    x -= total[:, None]
    return -x.exp().mul_(x).sum(dim=-1)


def gradient_of_logits(logits: Tensor, given: Slopes, how: Scoring) -> Tensor:
    """What `Vocabulary.gradient` gives, from the logits of all tokens."""
    x = how.x(logits)
    kept = restrict(x, how.distribution, given.targets)
    gradient = gradient_of_x(kept, given, given.targets, given.log_probs)
    return through_x(gradient, x, how).to(logits.dtype)


def gradient_of_x(x: Tensor, given: Slopes, places: Tensor, drawn: Tensor) -> Tensor:
    """The gradient with respect to x, with `drawn` added at `places`: at the target of each row."""
    factor = -given.log_probs[:, None]
    if given.entropies is not None:
        factor = factor - given.entropies[:, None] * (x - (given.total - given.entropy)[:, None])
    gradient = (x - given.total[:, None]).exp_().mul_(factor)
    return gradient.scatter_add_(1, places[:, None], drawn[:, None])


def through_x(gradient: Tensor, x: Tensor, how: Scoring) -> Tensor:
    """The gradient with respect to what the head gives, from that with respect to x, with nothing left out.
    Overwrites it."""
    if how.cap is not None:
        gradient *= _slope_of_cap(x, how.distribution.temperature, how.cap)
    return gradient.div_(how.distribution.temperature)


def _x(logits: Tensor, temperature: float, cap: float | None) -> Tensor:
    wide = logits.to(wide_format(logits))
    if cap is not None:
        wide = (wide / cap).tanh() * cap
    return wide / temperature


def _slope_of_cap(x: Tensor, temperature: float, cap: float) -> Tensor:
    return 1 - (x * (temperature / cap)).square()


def _fusible_statistics(
    logits: Tensor, targets: Tensor, temperature: float, cap: float | None, entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    wide = _x(logits, temperature, cap)
    total = wide.logsumexp(dim=-1)
    log_probs = wide.gather(1, targets[:, None])[:, 0] - total
    if not entropy:
        return log_probs, total, torch.zeros_like(total)
    surprise = total[:, None] - wide
    return log_probs, total, ((-surprise).exp() * surprise).sum(dim=-1)


def _fusible_gradient(
    logits: Tensor,
    targets: Tensor,
    total: Tensor,
    entropy: Tensor,
    grad_log_probs: Tensor,
    grad_entropies: Tensor | None,
    temperature: float,
    cap: float | None,
) -> Tensor:
    """As `gradient_of_logits`, written so that a compiler makes one kernel of it."""
    x = _x(logits, temperature, cap)
    factor = grad_log_probs[:, None]
    if grad_entropies is not None:
        factor = factor + grad_entropies[:, None] * (x - (total - entropy)[:, None])
    drawn = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    gradient = torch.where(drawn, grad_log_probs[:, None], 0.0) - (x - total[:, None]).exp() * factor
    if cap is not None:
        gradient = gradient * _slope_of_cap(x, temperature, cap)
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


def wide_format(values: Tensor) -> torch.dtype:
    """What sums and logarithms of such values are computed in."""
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def _chunks(rows: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    return (slice(start, min(rows, start + size)) for start in range(0, rows, size))


def _slices(chunk: slice, width: int) -> Iterator[tuple[slice, slice]]:
    """Parts of a chunk that are worked on at a time: their rows in all, and in the chunk."""
    for part in _chunks(chunk.stop - chunk.start, _SLICE // width):
        yield slice(chunk.start + part.start, chunk.start + part.stop), part
