"""Losses and advantages of a job's own, tried on a few made-up responses before the job starts.

Guarantees: what passes has returned the right shapes and finite numbers, its loss has a gradient, and neither
depends on how a step is divided: a response's loss is the same whatever is beside it in a micro-batch, and
advantages are the same on every rank. What fails is told in one sentence. Runs in this process, in well under
a second beside what the functions import and take themselves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from rljob_api.algorithm import Algorithm
from rljob_runtime.objective.advantages import GroupRewards, own_advantage
from rljob_runtime.objective.losses import policy_term
from rljob_runtime.objective.own import Own, load_own
from rljob_runtime.objective.own_loss import own_loss_of
from rljob_runtime.objective.tokens import Tokens

_LENGTHS = (3, 1, 5)
"""Of the responses, in tokens."""


def try_own_loss(algorithm: Algorithm, search_path: Sequence[Path]) -> None:
    """Try `policyLoss.custom`, which is set. Raises `FunctionLoadError`, `OwnFunctionFailed`."""
    own = own_loss_of(algorithm, search_path)
    assert own is not None
    tokens = _tokens(algorithm)
    losses, gradient = _evaluated(algorithm, tokens, own)
    if not torch.isfinite(losses).all():
        raise own.failed(f"gave a loss that is not finite for {_said(losses, tokens)}")
    if not torch.isfinite(gradient).all():
        raise own.failed(f"has a gradient that is not finite for {_said(gradient, tokens)}")
    if not gradient.any():
        raise own.failed(
            "has a gradient of 0 by tokens.new at every token that was tried: nothing would be learned"
        )
    alone = [_evaluated(algorithm, each, own)[0] for each in _one_by_one(tokens)]
    if not torch.allclose(torch.cat(alone), losses, rtol=1e-4, atol=1e-6):
        raise own.failed(
            "gave responses other losses when they were alone in a micro-batch: a token's loss may depend on "
            "its own response alone, and must not be divided by the number of tokens or responses, which "
            "algorithm.aggregation does for the whole batch"
        )


def try_own_advantage(algorithm: Algorithm, samples: int, search_path: Sequence[Path]) -> None:
    """Try `advantage.custom`, which is set, on groups of `samples` responses. Raises `FunctionLoadError`,
    `OwnFunctionFailed`."""
    setting = algorithm.advantage.custom
    assert setting is not None
    own = load_own(setting, search_path)
    once, again = (own_advantage(own, list(_groups(samples))) for _ in range(2))
    if any(not np.array_equal(one, other) for one, other in zip(once, again, strict=True)):
        raise own.failed(
            "returned other advantages for the same rewards when it was called again: each rank of the "
            "trainer calls it, and all must get the same"
        )


def _tokens(algorithm: Algorithm) -> Tokens:
    """Three responses with advantages of either sign, and log-ratios as they come in training."""
    generator = torch.Generator().manual_seed(0)
    count = sum(_LENGTHS)
    new = -0.05 - 2 * torch.rand(count, generator=generator)
    engine, proximal, reference, teacher = (
        (new + 0.1 * torch.randn(count, generator=generator)).clamp(max=-0.001) for _ in range(4)
    )
    lengths = torch.tensor(_LENGTHS)
    return Tokens(
        new,
        engine,
        torch.tensor([1.0, -0.5, -1.2]).repeat_interleave(lengths),
        torch.arange(len(_LENGTHS)).repeat_interleave(lengths),
        torch.rand(count, generator=generator) if algorithm.entropy_coefficient > 0 else None,
        # As in a step: the weights that it began with are known to every loss.
        proximal,
        reference if algorithm.kl is not None else None,
        teacher if algorithm.distillation is not None else None,
    )


def _evaluated(algorithm: Algorithm, tokens: Tokens, own: Own) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens' losses, and the gradient of their sum by the tokens' log-probabilities."""
    # Without masks, which would hide what is in them.
    plain = algorithm.model_copy(update={"off_policy_mask": None})
    new = tokens.new.clone().requires_grad_()
    losses = policy_term(plain, replace(tokens, new=new), own).loss
    (gradient,) = torch.autograd.grad(losses.sum(), new)
    return losses.detach(), gradient


def _one_by_one(tokens: Tokens) -> Iterator[Tokens]:
    for response in range(len(_LENGTHS)):
        inside = tokens.responses == response
        yield Tokens(
            tokens.new[inside],
            tokens.engine[inside],
            tokens.advantages[inside],
            torch.zeros_like(tokens.responses[inside]),
            None if tokens.entropy is None else tokens.entropy[inside],
            None if tokens.proximal is None else tokens.proximal[inside],
            None if tokens.reference is None else tokens.reference[inside],
            None if tokens.teacher is None else tokens.teacher[inside],
        )


def _said(values: torch.Tensor, tokens: Tokens) -> str:
    """The first token whose value is not finite, for people."""
    at = int((~torch.isfinite(values)).nonzero()[0, 0])
    known = {"log-probability": tokens.new, "engine's": tokens.engine, "advantage": tokens.advantages}
    return "a token with " + ", ".join(f"{name} {float(value[at]):.3g}" for name, value in known.items())


def _groups(samples: int) -> Iterator[GroupRewards]:
    """Rewards of either kind: two different ones, the same for all, a response without one."""
    rng = np.random.default_rng(0)
    right_or_wrong = (np.arange(samples) % 2 == 0).astype(np.float64)
    for uid, rewards in enumerate((right_or_wrong, rng.random(samples), np.ones(samples))):
        counted = np.ones(samples, dtype=np.bool_)
        counted[samples - 1] = uid != 1 or samples == 1
        tokens = np.where(counted, rng.integers(1, 100, samples), 0)
        yield GroupRewards(uid, uid, np.where(counted, rewards, 0.0), counted, tokens.astype(np.int64))
