"""What a policy loss is computed from, what it gives, and the sums over responses that several need.

Guarantees: every tensor has shape (tokens,): the response tokens of a micro-batch, one response after the
other; nothing is read from the device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO = 20.0
"""Bound of log-ratios before they are exponentiated."""


@dataclass(frozen=True)
class Tokens:
    """What is known of the response tokens of a micro-batch. All log-probabilities are of the sampling
    distribution; those of `new` carry the gradient. Of a response that ranks share, each of them has all
    tokens."""

    new: Tensor
    """Under the weights that are trained."""
    engine: Tensor
    """Log-probabilities as the engines gave them when they drew the tokens."""
    advantages: Tensor
    """From rewards; for a loss's term with what a teacher adds."""
    responses: Tensor
    """Index of each token's response in the micro-batch, int64, ascending."""
    entropy: Tensor | None
    """Entropy, in nats, of the distribution that the token was drawn from, under the trained weights; for the
    entropy bonus."""
    proximal: Tensor | None = None
    """Log-probabilities under the weights at the beginning of the step, for losses that need them
    (`losses.needs_proximal`)."""
    reference: Tensor | None = None
    """Log-probabilities under the reference model; for the KL penalty."""
    teacher: Tensor | None = None
    """Log-probabilities under the teacher; for distillation."""


@dataclass(frozen=True)
class PolicyTerm:
    """The policy loss of each token; `clipped` and `importance` have no gradient."""

    loss: Tensor
    clipped: Tensor
    """1 where a clip or a mask stops the gradient or a bound changes its weight, else 0."""
    importance: Tensor
    """Weight that corrects for the engines' distribution."""


def ratio_of(log_ratio: Tensor) -> Tensor:
    """The ratio, with its logarithm clamped to ±20."""
    return log_ratio.clamp(-LOG_RATIO, LOG_RATIO).exp()


def response_sums(values: Tensor, responses: Tensor) -> Tensor:
    """For each token the sum of `values` over the tokens of its response."""
    # There are no more responses than tokens: how many exactly is on the device, which would have to be
    # waited for.
    return torch.zeros_like(values).index_add(0, responses, values)[responses]


def response_means(values: Tensor, responses: Tensor) -> Tensor:
    """For each token the mean of `values` over the tokens of its response."""
    return response_sums(values, responses) / response_sums(torch.ones_like(values), responses)
