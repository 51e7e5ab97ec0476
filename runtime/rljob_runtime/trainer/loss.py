"""Policy losses, KL penalties and their aggregation, per token.

Guarantees: every tensor has shape (tokens,): the response tokens of a micro-batch, one response after the
other; a token's loss depends on its own response alone; with the weights of `token_weights`, losses and
gradients summed over any split into micro-batches and ranks are those of the whole batch; no term overflows,
whatever the log-probabilities (log-ratios are clamped to ±20).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rljob_api.algorithm import Algorithm, Clip, DecoupledClip, PolicyLoss

_LOG_RATIO = 20.0
"""Bound of log-ratios before they are exponentiated."""
_KL3 = 10.0
"""Bound of the k3 estimate at a token."""


@dataclass(frozen=True)
class Tokens:
    """What is known of the response tokens of a micro-batch. All log-probabilities are of the sampling
    distribution; those of `new` carry the gradient."""

    new: Tensor
    """Under the weights that are trained."""
    engine: Tensor
    """Log-probabilities as the engines gave them when they drew the tokens."""
    advantages: Tensor
    responses: Tensor
    """Index of each token's response in the micro-batch, int64, ascending."""
    entropy: Tensor | None
    """Entropy, in nats, of the distribution that the token was drawn from, under the trained weights; for the
    entropy bonus."""
    proximal: Tensor | None = None
    """Log-probabilities under the weights at the beginning of the step; for decoupled_clip."""
    reference: Tensor | None = None
    """Log-probabilities under the reference model; for the KL penalty."""


@dataclass(frozen=True)
class TokenLoss:
    """Loss of each token, with what there is to say about it; all but `total` without gradient."""

    total: Tensor
    policy: Tensor
    kl: Tensor
    clipped: Tensor
    """1 where clipping is in effect and stops the gradient, else 0."""
    importance: Tensor
    """Weight that corrects for the engines' distribution."""


def token_loss(algorithm: Algorithm, tokens: Tokens) -> TokenLoss:
    """Policy loss + coefficient * KL - coefficient * entropy, for each token."""
    policy, clipped, importance = _policy_loss(algorithm.policy_loss, tokens)
    total = policy
    kl = torch.zeros_like(policy)
    if algorithm.kl is not None:
        if tokens.reference is None:
            raise ValueError("a KL penalty needs the reference model's log-probabilities")
        kl = kl_penalty(algorithm.kl.estimator, tokens.new, tokens.reference)
        total = total + algorithm.kl.coefficient * kl
    if algorithm.entropy_coefficient > 0:
        if tokens.entropy is None:
            raise ValueError("an entropy bonus needs the entropies")
        total = total - algorithm.entropy_coefficient * tokens.entropy
    return TokenLoss(total, policy.detach(), kl.detach(), clipped, importance)


def token_weights(
    aggregation: Literal["token-mean", "sequence-mean"],
    lengths: Tensor,
    batch_tokens: int,
    batch_responses: int,
) -> Tensor:
    """Weight of each token in the batch's mean.

    `lengths`, shape (responses,), are those of the micro-batch; the counts are of the whole batch, over all
    ranks and micro-batches.
    """
    if aggregation == "token-mean":
        each = torch.full(
            lengths.shape, 1.0 / max(1, batch_tokens), dtype=torch.float32, device=lengths.device
        )
    else:
        each = 1.0 / (lengths.float() * max(1, batch_responses))
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
    bounded = difference.clamp(-_LOG_RATIO, _LOG_RATIO)
    return (bounded.exp() - bounded - 1).clamp(-_KL3, _KL3)


def _policy_loss(choice: PolicyLoss, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, whether clipped, importance weight."""
    if choice.clip is not None:
        loss, clipped = _clipped(choice.clip, tokens.new - tokens.engine, tokens.advantages)
        return loss, clipped, _ratio(tokens.new - tokens.engine).detach()
    if choice.decoupled_clip is not None:
        if tokens.proximal is None:
            raise ValueError("decoupled_clip needs the log-probabilities of the step's beginning")
        loss, clipped = _clipped(choice.decoupled_clip, tokens.new - tokens.proximal, tokens.advantages)
        weight = _importance(choice.decoupled_clip, tokens.proximal - tokens.engine, tokens.responses)
        return loss * weight, clipped, weight
    assert choice.truncated_reinforce is not None
    # REINFORCE: the gradient goes through the log-probability alone, the ratio is a constant.
    ratio = _ratio(tokens.new - tokens.engine).detach()
    weight = ratio.clamp(max=choice.truncated_reinforce.weight_cap)
    return -weight * tokens.advantages * tokens.new, (ratio > weight).float(), weight


def _ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-_LOG_RATIO, _LOG_RATIO).exp()


def _clipped(clip: Clip, log_ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
    """PPO's clipped objective (arXiv:1707.06347) with separate bounds (DAPO, arXiv:2503.14476) and dual clip
    (arXiv:1912.09729): loss and whether it is clipped."""
    ratio = _ratio(log_ratio)
    unclipped = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip.low, 1 + clip.high)
    # The larger loss of the two: clipping never makes an update look better than it is.
    loss = torch.maximum(unclipped, bounded)
    clipped = bounded > unclipped
    if clip.dual is not None:
        # With a negative advantage the loss grows with the ratio without bound; dual clip ends that.
        limit = -advantages * clip.dual
        capped = (advantages < 0) & (limit < loss)
        loss = torch.where(capped, limit, loss)
        clipped = clipped | capped
    return loss, clipped.float()


def _importance(clip: DecoupledClip, log_ratio: Tensor, responses: Tensor) -> Tensor:
    """Detached weight of each token that corrects for the engines' distribution."""
    log_ratio = log_ratio.detach()
    if clip.level == "sequence" and len(responses):
        # The log-ratio of a whole response is the sum over its tokens. There are no more responses than
        # tokens: how many exactly is on the device, which would have to be waited for.
        sums = torch.zeros_like(log_ratio)
        log_ratio = sums.index_add(0, responses, log_ratio)[responses]
    weight = _ratio(log_ratio)
    if clip.outside == "truncate":
        return weight.clamp(clip.weight_floor, clip.weight_cap)
    return weight * ((weight >= clip.weight_floor) & (weight <= clip.weight_cap))
