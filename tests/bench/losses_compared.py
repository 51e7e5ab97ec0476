"""Random batches, and the differences between a loss of ours and somebody else's on them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rljob_api.algorithm import Algorithm
from rljob_runtime.objective.losses import policy_term
from rljob_runtime.objective.tokens import Tokens
from tests.bench.figures import Figure

BATCHES, RESPONSES, WIDTH, GROUP = 20, 8, 32, 4


@dataclass(frozen=True)
class Batch:
    """Rows of log-probabilities, (responses, width), of which `mask` says what counts."""

    new: Tensor
    proximal: Tensor
    engine: Tensor
    advantages: Tensor
    """Of each response."""
    rewards: Tensor
    mask: Tensor
    teacher: Tensor


def batch(seed: int) -> Batch:
    """Responses of 1 to 32 tokens with ratios far on either side of all bounds."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, WIDTH + 1, (RESPONSES,), generator=generator)
    new = (-2 + noise(RESPONSES, WIDTH)).clamp(max=-0.01)
    proximal = (new + 0.5 * noise(RESPONSES, WIDTH)).clamp(max=-0.001)
    engine = (proximal + 0.5 * noise(RESPONSES, WIDTH)).clamp(max=-0.001)
    rewards = torch.rand(RESPONSES, generator=generator, dtype=torch.float64)
    advantages, mask = noise(RESPONSES), torch.arange(WIDTH) < lengths[:, None]
    teacher = (new + noise(RESPONSES, WIDTH)).clamp(max=-0.001)
    return Batch(new, proximal, engine, advantages, rewards, mask, teacher)


def ours(algorithm: Algorithm, given: Batch) -> tuple[Tensor, Tensor]:
    """Loss of the batch, and its gradient by `new`."""
    new = given.new.clone().requires_grad_()
    rows = torch.arange(RESPONSES)[:, None].expand(RESPONSES, WIDTH)[given.mask]
    tokens = Tokens(
        new[given.mask],
        given.engine[given.mask],
        given.advantages[rows],
        rows,
        None,
        given.proximal[given.mask],
        teacher=given.teacher[given.mask],
    )
    each = policy_term(algorithm, tokens).loss
    weights = torch.full_like(each, 1 / len(each)).detach()
    if algorithm.aggregation == "sequence-mean":
        weights = (1 / (given.mask.sum(1).double() * RESPONSES))[rows]
    elif algorithm.aggregation == "fixed-length":
        weights = torch.full_like(each, 1 / (RESPONSES * WIDTH)).detach()
    loss = (each * weights).sum()
    return loss.detach(), torch.autograd.grad(loss, new)[0]


Theirs = Callable[[Batch, Tensor], Tensor]
"""The batch's loss, from the batch and its `new` with the gradient."""


def compared(
    name: str, algorithm: Algorithm, theirs: Theirs, made: Callable[[int], Batch] = batch
) -> Iterator[Figure]:
    """The largest differences of losses and of gradients over batches that are `made` of numbers."""
    loss = slope = 0.0
    for seed in range(BATCHES):
        given = made(seed)
        new = given.new.clone().requires_grad_()
        found = theirs(given, new)
        (gradient,) = torch.autograd.grad(found, new)
        own_loss, own_gradient = ours(algorithm, given)
        loss = max(loss, float((own_loss - found.detach()).abs()))
        slope = max(slope, float((own_gradient - gradient)[given.mask].abs().max()))
    yield Figure(f"{name}: loss", loss, "largest difference")
    yield Figure(f"{name}: gradient", slope, "largest difference")


def algorithm_of(loss: dict[str, Any], **more: Any) -> Algorithm:
    return Algorithm.model_validate({"policyLoss": loss, **more})
