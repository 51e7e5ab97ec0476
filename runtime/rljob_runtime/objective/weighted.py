"""REINFORCE with weights: the gradient goes through the log-probability alone, and a ratio weighs it."""

from torch import Tensor

from rljob_api.algorithm import Cispo, TruncatedReinforce
from rljob_runtime.objective.tokens import PolicyTerm, Tokens, ratio_of


def truncated_reinforce(setting: TruncatedReinforce, tokens: Tokens, old: Tensor) -> PolicyTerm:
    """REINFORCE with truncated importance sampling: -sg(min(pi / pi_old, cap)) * A * log pi."""
    return _weighted(tokens, old, 0.0, setting.weight_cap)


def cispo(setting: Cispo, tokens: Tokens, old: Tensor) -> PolicyTerm:
    """CISPO (MiniMax-M1, arXiv:2506.13585): -sg(clamp(pi / pi_old, floor, cap)) * A * log pi. Every token
    keeps a gradient."""
    return _weighted(tokens, old, setting.weight_floor, setting.weight_cap)


def _weighted(tokens: Tokens, old: Tensor, floor: float, cap: float) -> PolicyTerm:
    ratio = ratio_of(tokens.new - old).detach()
    weight = ratio.clamp(floor, cap)
    return PolicyTerm(-weight * tokens.advantages * tokens.new, (ratio != weight).float(), weight)
