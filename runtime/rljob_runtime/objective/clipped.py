"""PPO's clipped ratios: of tokens (`clip`, `decoupledClip`) and of whole responses (`gspo`)."""

import torch
from torch import Tensor

from rljob_api.algorithm import Clip, DecoupledClip, Gspo
from rljob_runtime.objective.correction import importance_weights
from rljob_runtime.objective.tokens import LOG_RATIO, PolicyTerm, Tokens, ratio_of, response_means


def clip(setting: Clip, tokens: Tokens, old: Tensor) -> PolicyTerm:
    """PPO's clipped objective (arXiv:1707.06347) with separate bounds (DAPO, arXiv:2503.14476) and dual clip
    (arXiv:1912.09729). The ratio is against `old`, which is its importance weight too."""
    log_ratio = tokens.new - old
    ratio = ratio_of(log_ratio)
    loss, clipped = _bounded(ratio, tokens.advantages, setting)
    return PolicyTerm(loss, clipped.float(), ratio.detach())


def decoupled_clip(setting: DecoupledClip, tokens: Tokens, old: Tensor) -> PolicyTerm:
    """Decoupled PPO (arXiv:2505.24298): `clip` against the proximal policy `old`, weighed by the ratio of
    that to the engines'."""
    found = clip(setting, tokens, old)
    weight = importance_weights(setting, old - tokens.engine, tokens.responses)
    return PolicyTerm(found.loss * weight, found.clipped, weight)


def gspo(setting: Gspo, tokens: Tokens, old: Tensor) -> PolicyTerm:
    """Group sequence policy optimization (GSPO-token, arXiv:2507.18071): PPO's clip of one ratio for each
    response, s = exp(mean of log(pi / pi_old) over its tokens), and dual clip where it is asked for.

    A token's loss is written with s * pi / sg(pi), where sg stops the gradient: its value is that of s, and
    its gradient goes through the token's own log-probability."""
    mean = response_means((tokens.new - old).detach(), tokens.responses)
    own = tokens.new - tokens.new.detach()
    ratio = ratio_of(mean.clamp(-LOG_RATIO, LOG_RATIO) + own)
    loss, clipped = _bounded(ratio, tokens.advantages, setting)
    return PolicyTerm(loss, clipped.float(), ratio.detach())


def _bounded(ratio: Tensor, advantages: Tensor, setting: Clip | Gspo) -> tuple[Tensor, Tensor]:
    """The larger loss of the ratio and of the ratio within [1 - low, 1 + high], and where a bound stops the
    gradient: clipping never makes an update look better than it is, but for dual clip."""
    unclipped = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - setting.low, 1 + setting.high)
    loss, clipped = torch.maximum(unclipped, bounded), bounded > unclipped
    if setting.dual is not None:
        # With a negative advantage the loss grows with the ratio without bound; dual clip ends that.
        limit = -advantages * setting.dual
        capped = (advantages < 0) & (limit < loss)
        loss = torch.where(capped, limit, loss)
        clipped = clipped | capped
    return loss, clipped
