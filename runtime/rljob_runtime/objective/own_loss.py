"""A policy loss of the job's own."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from rljob_api.algorithm import Algorithm
from rljob_runtime.objective.own import Own, load_own
from rljob_runtime.objective.tokens import PolicyTerm, Tokens, ratio_of


def own_loss_of(algorithm: Algorithm, search_path: Sequence[Path] = ()) -> Own | None:
    """The function of `policyLoss.custom`, loaded; None where the job has another loss. Raises
    `FunctionLoadError`."""
    setting = algorithm.policy_loss.custom
    return None if setting is None else load_own(setting, search_path)


def own_loss(function: Own, tokens: Tokens, old: Tensor) -> PolicyTerm:
    """What the function returns, in the place of a loss of the table. Raises `OwnFunctionFailed`."""
    loss = function(tokens, old)
    if not isinstance(loss, Tensor):
        raise function.failed(f"returned {type(loss).__name__}, and must return a tensor: the tokens' losses")
    if loss.shape != tokens.new.shape:
        raise function.failed(
            f"returned a tensor of shape {tuple(loss.shape)} for {len(tokens.new)} tokens, and must return "
            "the loss of each token: no mean or sum over them"
        )
    if tokens.new.requires_grad and not loss.requires_grad:
        raise function.failed("returned a loss without gradient: it must be computed from tokens.new")
    loss = loss.to(tokens.new.dtype)
    return PolicyTerm(loss, torch.zeros_like(loss).detach(), ratio_of(tokens.new - old).detach())
