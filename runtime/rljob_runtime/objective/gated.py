"""A soft gate on the ratio in place of a clip."""

import torch
from torch import Tensor

from rljob_api.algorithm import Sapo
from rljob_runtime.objective.tokens import PolicyTerm, Tokens, ratio_of


def sapo(setting: Sapo, tokens: Tokens, old: Tensor) -> PolicyTerm:
    """Soft adaptive policy optimization (arXiv:2511.20347): -A * (4 / t) * sigmoid(t * (pi / pi_old - 1)),
    with a temperature t for positive advantages and one for the others. At a ratio of 1 its gradient is that
    of REINFORCE."""
    ratio = ratio_of(tokens.new - old)
    positive = torch.full_like(ratio, setting.positive_temperature)
    temperature = torch.where(tokens.advantages > 0, positive, setting.negative_temperature)
    gate = torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature
    return PolicyTerm(-tokens.advantages * gate, torch.zeros_like(ratio).detach(), ratio.detach())
