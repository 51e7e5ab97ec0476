"""The loss of each token, from policy loss, KL penalty and entropy bonus, and its weight in the batch.

Guarantees: every tensor has shape (tokens,): the response tokens of a micro-batch, one response after the
other; a token's loss depends on its own response alone; with the weights of `token_weights`, losses and
gradients summed over any split into micro-batches and ranks are those of the whole batch; no term overflows,
whatever the log-probabilities (log-ratios are clamped to ±20).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rljob_api.algorithm import Aggregation, Algorithm
from rljob_runtime.objective.distillation import teacher_kl
from rljob_runtime.objective.losses import policy_term
from rljob_runtime.objective.own import Own
from rljob_runtime.objective.tokens import LOG_RATIO, Tokens

_KL3 = 10.0
"""Bound of the k3 estimate at a token."""


@dataclass(frozen=True)
class TokenLoss:
    """Loss of each token, with what there is to say about it; all but `total` without gradient."""

    total: Tensor
    policy: Tensor
    kl: Tensor
    teacher_kl: Tensor
    """log(policy / teacher); 0 without a teacher."""
    clipped: Tensor
    """1 where a clip or a mask stops the gradient or a bound changes its weight, else 0."""
    importance: Tensor
    """Weight that corrects for the engines' distribution."""


def token_loss(algorithm: Algorithm, tokens: Tokens, own: Own | None = None) -> TokenLoss:
    """Policy loss + coefficient * KL - coefficient * entropy, for each token. `own`: the function of
    `policyLoss.custom`."""
    policy = policy_term(algorithm, tokens, own)
    total = policy.loss
    kl = torch.zeros_like(policy.loss)
    if algorithm.kl is not None:
        if tokens.reference is None:
            raise ValueError("a KL penalty needs the reference model's log-probabilities")
        kl = kl_penalty(algorithm.kl.estimator, tokens.new, tokens.reference)
        total = total + algorithm.kl.coefficient * kl
    if algorithm.entropy_coefficient > 0:
        if tokens.entropy is None:
            raise ValueError("an entropy bonus needs the entropies")
        total = total - algorithm.entropy_coefficient * tokens.entropy
    taught = torch.zeros_like(kl) if algorithm.distillation is None else teacher_kl(tokens)
    return TokenLoss(total, policy.loss.detach(), kl.detach(), taught, policy.clipped, policy.importance)


def token_weights(
    aggregation: Aggregation,
    lengths: Tensor,
    batch_tokens: int,
    batch_responses: int,
    longest: int,
) -> Tensor:
    """Weight of each token in the batch's loss.

    `lengths`, shape (responses,), are those of the micro-batch; the counts are of the whole batch, over all
    ranks and micro-batches; `longest` is the length that no response exceeds, in tokens.
    """
    if aggregation == "sequence-mean":
        each = 1.0 / (lengths.float() * max(1, batch_responses))
    else:
        divisor = batch_tokens if aggregation == "token-mean" else batch_responses * longest
        each = torch.full(lengths.shape, 1.0 / max(1, divisor), dtype=torch.float32, device=lengths.device)
    return each.repeat_interleave(lengths)


def kl_penalty(estimator: Literal["k1", "k2", "k3"], new: Tensor, reference: Tensor) -> Tensor:
    """Estimate of KL(policy || reference) at each token (Schulman 2020, "Approximating KL divergence").

    k1 = log pi - log ref (as a loss its gradient is zero on average); k2 is half its square; k3 is
    ref/pi - 1 - log(ref/pi), clamped to 10 like verl's low_var_kl.
    """
    difference = reference - new
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return 0.5 * difference.square()
    bounded = difference.clamp(-LOG_RATIO, LOG_RATIO)
    return (bounded.exp() - bounded - 1).clamp(-_KL3, _KL3)
