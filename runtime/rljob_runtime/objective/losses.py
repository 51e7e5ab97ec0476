"""The table of policy losses: what a manifest's `policyLoss` names, what computes it, and what that needs.

Guarantees: a token's loss depends on its own response alone, of which all tokens are in the same micro-batch
on each rank that computes it, whatever ranks share the response; no term overflows, whatever the
log-probabilities; a loss that is not finite has a gradient that is not finite.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rljob_api.algorithm import Algorithm
from rljob_runtime.objective.clipped import clip, decoupled_clip, gspo
from rljob_runtime.objective.correction import importance_weights
from rljob_runtime.objective.distillation import towards_teacher
from rljob_runtime.objective.gated import sapo
from rljob_runtime.objective.masks import off_policy
from rljob_runtime.objective.own import Own
from rljob_runtime.objective.own_loss import own_loss
from rljob_runtime.objective.tokens import PolicyTerm, Tokens
from rljob_runtime.objective.weighted import cispo, dppo_tv, truncated_reinforce


@dataclass(frozen=True)
class Loss:
    """How a policy loss is computed."""

    term: Callable[[Any, Tokens, Tensor], PolicyTerm]
    """From its settings, the tokens, and the log-probabilities that ratios are taken against."""
    proximal: bool = False
    """Ratios are always against the policy that the step began with; otherwise that is so with
    `rolloutCorrection` alone, and without it they are against the engines' log-probabilities."""


LOSSES: Mapping[str, Loss] = {
    "clip": Loss(clip),
    "decoupled_clip": Loss(decoupled_clip, proximal=True),
    "truncated_reinforce": Loss(truncated_reinforce),
    "gspo": Loss(gspo),
    "cispo": Loss(cispo),
    "dppo_tv": Loss(dppo_tv),
    "sapo": Loss(sapo),
    "custom": Loss(own_loss),
}
"""By the Python name of the member of `PolicyLoss`. In place of its settings, `custom` takes the function
that they name."""


def needs_proximal(algorithm: Algorithm) -> bool:
    """Whether the loss needs `Tokens.proximal`."""
    return LOSSES[algorithm.policy_loss.chosen[0]].proximal or algorithm.rollout_correction is not None


def policy_term(algorithm: Algorithm, tokens: Tokens, own: Own | None = None) -> PolicyTerm:
    """The policy loss of each token, with the teacher, the corrections and the masks that the manifest asks
    for. `own`: the function of `policyLoss.custom`, whose errors are `OwnFunctionFailed`."""
    taught = tokens
    if algorithm.distillation is not None:
        taught = towards_teacher(algorithm.distillation, tokens)
    found = _corrected(algorithm, taught, own)
    # A loss that is not finite, as from log-probabilities that are no numbers, may have a finite gradient. It
    # gets one that is not, so that the update is refused on all ranks, without waiting for the device here.
    loss = torch.where(torch.isfinite(found.loss), found.loss, found.loss * tokens.new)
    found = replace(found, loss=loss)
    if algorithm.off_policy_mask is None:
        return found
    # Whether a response is a bad one is for its reward to say.
    left_out = off_policy(algorithm.off_policy_mask, tokens)
    clipped = torch.where(left_out, torch.ones_like(found.clipped), found.clipped)
    return PolicyTerm(found.loss.masked_fill(left_out, 0.0), clipped, found.importance)


def _corrected(algorithm: Algorithm, tokens: Tokens, own: Own | None) -> PolicyTerm:
    name, setting = algorithm.policy_loss.chosen
    if own is not None:
        setting = own
    if not needs_proximal(algorithm):
        return LOSSES[name].term(setting, tokens, tokens.engine)
    if tokens.proximal is None:
        raise ValueError(f"{name} needs the log-probabilities of the step's beginning")
    found = LOSSES[name].term(setting, tokens, tokens.proximal)
    if algorithm.rollout_correction is None:
        return found
    log_ratio = tokens.proximal - tokens.engine
    weight = importance_weights(algorithm.rollout_correction, log_ratio, tokens.responses)
    return PolicyTerm(found.loss * weight, found.clipped, weight)
