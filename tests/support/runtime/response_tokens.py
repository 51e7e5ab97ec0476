"""Response tokens for tests of losses: one by one for a reference in plain Python, and as tensors."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from rljob_runtime.objective.tokens import LOG_RATIO, Tokens


@dataclass(frozen=True)
class Token:
    """One response token."""

    response: int
    new: float
    engine: float
    proximal: float
    advantage: float
    reference: float = 0.0
    entropy: float = 0.0
    teacher: float = 0.0


def random_tokens(seed: int, spread: float) -> list[Token]:
    """Five responses with advantages of either sign and log-ratios of size `spread`."""
    rng, taught = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    found = []
    for response, (length, advantage) in enumerate([(4, 1.3), (1, -0.7), (6, -2.1), (3, 0.0), (5, 0.4)]):
        for _ in range(length):
            new = -3.0 + spread * rng.standard_normal()
            engine, proximal, reference = (new + spread * rng.standard_normal() for _ in range(3))
            entropy, teacher = rng.random(), new + spread * taught.standard_normal()
            found.append(Token(response, new, engine, proximal, advantage, reference, entropy, teacher))
    return found


def tensors(tokens: list[Token]) -> tuple[Tokens, torch.Tensor]:
    """The same as float64 tensors, and the leaf that takes the gradient."""

    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(token, name) for token in tokens], dtype=torch.float64)

    new = column("new").requires_grad_()
    responses = torch.tensor([token.response for token in tokens])
    return Tokens(
        new, column("engine"), column("advantage"), responses, column("entropy"), column("proximal"),
        column("reference"), column("teacher"),
    ), new  # fmt: skip


def exp(value: float) -> float:
    """As losses exponentiate a log-ratio."""
    return math.exp(max(-LOG_RATIO, min(LOG_RATIO, value)))
