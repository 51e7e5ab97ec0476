"""Every loss against a reference that goes token by token in plain Python."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.algorithm import (
    Algorithm,
    Clip,
    DecoupledClip,
    KlPenalty,
    PolicyLoss,
    TruncatedReinforce,
)
from rljob_runtime.trainer.loss import kl_penalty, token_loss, token_weights
from tests.support.runtime.response_tokens import Token, exp, random_tokens, tensors


def reference_clip(clip: Clip, ratio: float, advantage: float) -> float:
    if advantage >= 0:
        return -advantage * min(ratio, 1 + clip.high)
    loss = -advantage * max(ratio, 1 - clip.low)
    return loss if clip.dual is None else min(loss, -advantage * clip.dual)


def reference_weight(loss: DecoupledClip, tokens: list[Token], token: Token) -> float:
    log_weight = token.proximal - token.engine
    if loss.level == "sequence":
        log_weight = sum(each.proximal - each.engine for each in tokens if each.response == token.response)
    weight = exp(log_weight)
    if loss.outside == "truncate":
        return max(loss.weight_floor, min(loss.weight_cap, weight))
    return weight if loss.weight_floor <= weight <= loss.weight_cap else 0.0


def reference_loss(loss: PolicyLoss, tokens: list[Token], token: Token) -> float:
    """The policy loss of one token, from the papers' formulas."""
    _, setting = loss.chosen
    if isinstance(setting, DecoupledClip):
        ratio = exp(token.new - token.proximal)
        return reference_weight(setting, tokens, token) * reference_clip(setting, ratio, token.advantage)
    if isinstance(setting, Clip):
        return reference_clip(setting, exp(token.new - token.engine), token.advantage)
    weight = min(setting.weight_cap, exp(token.new - token.engine))
    return -weight * token.advantage * token.new


LOSSES = {
    "clip": PolicyLoss(clip=Clip()),
    "clip, higher": PolicyLoss(clip=Clip(low=0.1, high=0.28, dual=None)),
    "clip, dual 1.5": PolicyLoss(clip=Clip(dual=1.5)),
    "decoupled, truncated": PolicyLoss(decoupled_clip=DecoupledClip(weight_floor=0.5)),
    "decoupled, masked": PolicyLoss(decoupled_clip=DecoupledClip(weight_floor=0.5, outside="mask")),
    "decoupled, by sequence": PolicyLoss(decoupled_clip=DecoupledClip(level="sequence")),
    "decoupled, by sequence, masked": PolicyLoss(
        decoupled_clip=DecoupledClip(level="sequence", outside="mask", weight_floor=0.3, weight_cap=3.0)
    ),
    "truncated reinforce": PolicyLoss(truncated_reinforce=TruncatedReinforce(weight_cap=1.2)),
}


@pytest.mark.parametrize("spread", [0.01, 0.3, 2.0, 30.0])
@pytest.mark.parametrize("name", LOSSES)
def test_policy_loss(name: str, spread: float) -> None:
    tokens = random_tokens(3, spread)
    found = token_loss(Algorithm(policy_loss=LOSSES[name]), tensors(tokens)[0])
    expected = [reference_loss(LOSSES[name], tokens, token) for token in tokens]
    np.testing.assert_allclose(found.policy.numpy(), expected, rtol=1e-10)
    np.testing.assert_allclose(found.total.detach().numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_no_number_has_a_gradient_that_is_none(name: str) -> None:
    """Otherwise what an engine computed nonsense for is passed over, and the step's loss is NaN."""
    packed, new = tensors(random_tokens(3, 0.3))
    packed.engine[1] = math.nan
    token_loss(Algorithm(policy_loss=LOSSES[name]), packed).total.sum().backward()
    assert new.grad is not None and new.grad[1].isnan()
    assert new.grad[packed.responses != packed.responses[1]].isfinite().all()


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "truncated reinforce"])
def test_gradient_is_that_of_the_formula(name: str) -> None:
    """Against central differences of the reference; importance weights do not depend on `new`."""
    tokens = random_tokens(4, 0.3)
    packed, new = tensors(tokens)
    token_loss(Algorithm(policy_loss=LOSSES[name]), packed).total.sum().backward()
    h = 1e-6
    for index, token in enumerate(tokens):
        moved = [
            reference_loss(LOSSES[name], tokens, replace(token, new=token.new + side)) for side in (h, -h)
        ]
        assert new.grad is not None
        assert float(new.grad[index]) == pytest.approx((moved[0] - moved[1]) / (2 * h), abs=1e-5)


def test_gradient_of_truncated_reinforce() -> None:
    tokens = random_tokens(4, 0.3)
    packed, new = tensors(tokens)
    token_loss(Algorithm(policy_loss=LOSSES["truncated reinforce"]), packed).total.sum().backward()
    expected = [-min(1.2, exp(token.new - token.engine)) * token.advantage for token in tokens]
    assert new.grad is not None
    np.testing.assert_allclose(new.grad.numpy(), expected, rtol=1e-10)


CLIPPED = [
    # advantage, ratio, clipped by low 0.2, high 0.2, dual 3
    (1.0, 1.0, False), (1.0, 1.21, True), (1.0, 0.5, False), (-1.0, 0.79, True), (-1.0, 1.5, False),
    (-1.0, 3.1, True), (0.0, 5.0, False),
]  # fmt: skip


@pytest.mark.parametrize(("advantage", "ratio", "clipped"), CLIPPED)
def test_what_counts_as_clipped_has_no_gradient(advantage: float, ratio: float, clipped: bool) -> None:
    packed, new = tensors([Token(0, new=math.log(ratio), engine=0.0, proximal=0.0, advantage=advantage)])
    found = token_loss(Algorithm(), packed)
    found.total.sum().backward()
    assert bool(found.clipped[0]) is clipped
    assert new.grad is not None
    if advantage:
        assert (float(new.grad[0]) == 0.0) is clipped


KL = {
    "k1": lambda d: -d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: max(-10.0, min(10.0, exp(d) - max(-20.0, min(20.0, d)) - 1)),
}


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl(estimator: Any) -> None:
    differences = [-50.0, -3.0, -0.1, 0.0, 0.1, 2.0, 50.0]
    reference = torch.tensor(differences, dtype=torch.float64) - 1.0
    found = kl_penalty(estimator, torch.full_like(reference, -1.0), reference)
    np.testing.assert_allclose(found.numpy(), [KL[estimator](d) for d in differences], rtol=1e-12, atol=1e-15)


def test_penalty_and_bonus_are_added() -> None:
    tokens = random_tokens(5, 0.3)
    algorithm = Algorithm(kl=KlPenalty(coefficient=0.7, estimator="k3"), entropy_coefficient=0.2)
    found = token_loss(algorithm, tensors(tokens)[0])
    expected = [
        reference_loss(algorithm.policy_loss, tokens, token)
        + 0.7 * KL["k3"](token.reference - token.new)
        - 0.2 * token.entropy
        for token in tokens
    ]
    np.testing.assert_allclose(found.total.detach().numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", [0.1] * 5),
        ("sequence-mean", [1 / 8, 1 / 8, 1 / 12, 1 / 12, 1 / 12]),
        ("fixed-length", [1 / 20] * 5),
    ],
)
def test_token_weights(aggregation: Any, expected: list[float]) -> None:
    """Two responses of a batch that has four, and ten tokens, where a response has five at most."""
    found = token_weights(aggregation, torch.tensor([2, 3]), batch_tokens=10, batch_responses=4, longest=5)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
