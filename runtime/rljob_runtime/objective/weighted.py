"""REINFORCE with weights: the gradient goes through the log-probability alone, and a ratio weighs it."""

import torch
from torch import Tensor

from rljob_api.algorithm import Cispo, DppoTv, TruncatedReinforce
from rljob_runtime.objective.tokens import PolicyTerm, Tokens, ratio_of


def truncated_reinforce(setting: TruncatedReinforce, tokens: Tokens, old: Tensor) -> PolicyTerm:
    """REINFORCE with truncated importance sampling: -sg(min(pi / pi_old, cap)) * A * log pi."""
    return _weighted(tokens, old, 0.0, setting.weight_cap)


def cispo(setting: Cispo, tokens: Tokens, old: Tensor) -> PolicyTerm:
    """CISPO (MiniMax-M1, arXiv:2506.13585): -sg(clamp(pi / pi_old, floor, cap)) * A * log pi. Every token
    keeps a gradient."""
    return _weighted(tokens, old, setting.weight_floor, setting.weight_cap)


def dppo_tv(setting: DppoTv, tokens: Tokens, old: Tensor) -> PolicyTerm:
    """DPPO with its binary total variation (arXiv:2602.04879): -M * sg(min(pi / pi_old, cap)) * A * log pi,
    where M is 0 for a token whose probability has moved beyond its bound in the direction of its advantage:
    pi - pi_old > high with A > 0, pi_old - pi > low otherwise."""
    found = _weighted(tokens, old, 0.0, setting.weight_cap)
    moved = tokens.new.detach().exp() - old.exp()
    left_out = torch.where(tokens.advantages > 0, moved > setting.high, moved < -setting.low)
    return PolicyTerm(found.loss * ~left_out, left_out.float(), found.importance)


def _weighted(tokens: Tokens, old: Tensor, floor: float, cap: float) -> PolicyTerm:
    ratio = ratio_of(tokens.new - old).detach()
    weight = ratio.clamp(floor, cap)
    return PolicyTerm(-weight * tokens.advantages * tokens.new, (ratio != weight).float(), weight)
