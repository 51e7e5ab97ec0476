"""Every policy loss by hand: a few tokens whose numbers were worked out on paper, and a reference that goes
token by token in plain Python."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.algorithm import (
    Algorithm,
    Cispo,
    DppoTv,
    Gspo,
    ImportanceWeights,
    OffPolicyMask,
    PolicyLoss,
    Sapo,
)
from rljob_runtime.objective.losses import LOSSES, needs_proximal, policy_term
from tests.support.runtime.response_tokens import Token, exp, random_tokens, tensors


def gradient(algorithm: Algorithm, tokens: list[Token]) -> list[float]:
    """Of the sum of the tokens' losses, by each token's log-probability."""
    given, new = tensors(tokens)
    policy_term(algorithm, given).loss.sum().backward()
    assert new.grad is not None
    return list(map(float, new.grad))


def siblings(tokens: list[Token], token: Token) -> list[Token]:
    return [each for each in tokens if each.response == token.response]


Old = Callable[[Token], float]
"""The log-probability that a token's ratio is taken against."""


def gspo(setting: Gspo, tokens: list[Token], token: Token, old: Old) -> tuple[float, float]:
    """Loss of a token, and its gradient by the token's own log-probability."""
    own = siblings(tokens, token)
    ratio = exp(sum(each.new - old(each) for each in own) / len(own))
    low, high = 1 - setting.low, 1 + setting.high
    if token.advantage >= 0:
        return -token.advantage * min(ratio, high), -token.advantage * ratio * (ratio <= high)
    if setting.dual is not None and ratio > setting.dual:
        return -token.advantage * setting.dual, 0.0
    return -token.advantage * max(ratio, low), -token.advantage * ratio * (ratio >= low)


def cispo(setting: Cispo, tokens: list[Token], token: Token, old: Old) -> tuple[float, float]:
    weight = min(setting.weight_cap, max(setting.weight_floor, exp(token.new - old(token))))
    return -weight * token.advantage * token.new, -weight * token.advantage


def dppo_tv(setting: DppoTv, tokens: list[Token], token: Token, old: Old) -> tuple[float, float]:
    weight = min(setting.weight_cap, exp(token.new - old(token)))
    moved = math.exp(token.new) - math.exp(old(token))
    if moved > setting.high if token.advantage > 0 else moved < -setting.low:
        return 0.0, 0.0
    return -weight * token.advantage * token.new, -weight * token.advantage


def sapo(setting: Sapo, tokens: list[Token], token: Token, old: Old) -> tuple[float, float]:
    ratio = exp(token.new - old(token))
    steep = setting.positive_temperature if token.advantage > 0 else setting.negative_temperature
    # Beyond what a float64 tells from 1, where exp would overflow.
    gate = 1 / (1 + math.exp(min(700.0, -steep * (ratio - 1))))
    slope = 4 * gate * (1 - gate) * ratio * (abs(token.new - old(token)) <= 20)
    return -token.advantage * gate * 4 / steep, -token.advantage * slope


BY_HAND: dict[str, Callable[[Any, list[Token], Token, Old], tuple[float, float]]] = {
    "gspo": gspo,
    "cispo": cispo,
    "dppo_tv": dppo_tv,
    "sapo": sapo,
}
CHOICES = {
    "gspo": PolicyLoss(gspo=Gspo()),
    "gspo, dual": PolicyLoss(gspo=Gspo(dual=1.1)),
    "gspo, wide": PolicyLoss(gspo=Gspo(low=0.2, high=0.5)),
    "cispo": PolicyLoss(cispo=Cispo()),
    "cispo, narrow": PolicyLoss(cispo=Cispo(weight_floor=0.9, weight_cap=1.2)),
    "dppoTv": PolicyLoss(dppo_tv=DppoTv()),
    "dppoTv, narrow": PolicyLoss(dppo_tv=DppoTv(low=0.002, high=0.01, weight_cap=1.1)),
    "sapo": PolicyLoss(sapo=Sapo()),
    "sapo, steep": PolicyLoss(sapo=Sapo(positive_temperature=3.0, negative_temperature=0.5)),
}
CORRECTIONS = {
    "none": None,
    "truncated": ImportanceWeights(weight_floor=0.5),
    "masked": ImportanceWeights(weight_floor=0.5, outside="mask"),
    "truncated by sequence": ImportanceWeights(level="sequence"),
    "masked by sequence": ImportanceWeights(
        level="sequence", outside="mask", weight_floor=0.3, weight_cap=3.0
    ),
}


def correction(setting: ImportanceWeights, tokens: list[Token], token: Token) -> float:
    counted = siblings(tokens, token) if setting.level == "sequence" else [token]
    weight = exp(sum(each.proximal - each.engine for each in counted))
    if setting.outside == "truncate":
        return max(setting.weight_floor, min(setting.weight_cap, weight))
    return weight if setting.weight_floor <= weight <= setting.weight_cap else 0.0


@pytest.mark.parametrize("spread", [0.01, 0.3, 2.0, 30.0])
@pytest.mark.parametrize("corrected", CORRECTIONS)
@pytest.mark.parametrize("name", CHOICES)
def test_losses_and_gradients(name: str, corrected: str, spread: float) -> None:
    choice, weights = CHOICES[name], CORRECTIONS[corrected]
    member, setting = choice.chosen
    tokens = random_tokens(3, spread)
    algorithm = Algorithm(policy_loss=choice, rollout_correction=weights)
    found = policy_term(algorithm, tensors(tokens)[0])

    def old(token: Token) -> float:
        return token.engine if weights is None else token.proximal

    each = [BY_HAND[member](setting, tokens, token, old) for token in tokens]
    by = [1.0 if weights is None else correction(weights, tokens, token) for token in tokens]
    expected = [loss * weight for (loss, _), weight in zip(each, by, strict=True)]
    np.testing.assert_allclose(found.loss.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    slopes = [slope * weight for (_, slope), weight in zip(each, by, strict=True)]
    np.testing.assert_allclose(gradient(algorithm, tokens), slopes, rtol=1e-9, atol=1e-12)
    if weights is not None:
        np.testing.assert_allclose(found.importance.numpy(), by, rtol=1e-9)


def two_tokens(first: float, second: float, advantage: float) -> list[Token]:
    """A response of two tokens with these ratios, and another one that must not matter."""
    base = -1.0
    return [
        Token(0, base + math.log(first), base, base, advantage),
        Token(0, base + math.log(second), base, base, advantage),
        Token(1, base + math.log(7.0), base, base, 1.0),
    ]


def test_gspo_on_paper() -> None:
    """Ratios 1.21 and 1: their geometric mean is 1.1, for both tokens."""
    wide = Algorithm(policy_loss=PolicyLoss(gspo=Gspo(low=0.2, high=0.2)))
    tokens = two_tokens(1.21, 1.0, advantage=2.0)
    found = policy_term(wide, tensors(tokens)[0])
    assert found.loss[:2].tolist() == pytest.approx([-2.2, -2.2])
    assert gradient(wide, tokens)[:2] == pytest.approx([-2.2, -2.2])
    assert found.clipped[:2].tolist() == [0, 0]
    narrow = Algorithm(policy_loss=PolicyLoss(gspo=Gspo(low=0.05, high=0.05)))
    found = policy_term(narrow, tensors(tokens)[0])
    assert found.loss[:2].tolist() == pytest.approx([-2.1, -2.1])
    assert gradient(narrow, tokens)[:2] == [0, 0]
    assert found.clipped[:2].tolist() == [1, 1], "both, though the second token's own ratio is 1"


@pytest.mark.parametrize("log_ratio", [1.2, 12.0, 30.0])
def test_no_bad_response_explodes_with_gspo_where_dual_clip_is_asked_for(log_ratio: float) -> None:
    """However much likelier it has become, as one sample may in a batch."""
    tokens = two_tokens(math.exp(log_ratio), math.exp(log_ratio), advantage=-2.0)
    bounded = Algorithm(policy_loss=PolicyLoss(gspo=Gspo(dual=3.0)))
    found = policy_term(bounded, tensors(tokens)[0])
    assert found.loss[:2].tolist() == [6, 6], "3 times the advantage"
    assert gradient(bounded, tokens)[:2] == [0, 0]
    assert found.clipped[:2].tolist() == [1, 1]
    unbounded = Algorithm(policy_loss=PolicyLoss(gspo=Gspo()))
    assert policy_term(unbounded, tensors(tokens)[0]).clipped[:2].tolist() == [0, 0]
    assert min(gradient(unbounded, tokens)[:2]) > 6


def test_cispo_on_paper() -> None:
    """Weights stay at the cap and every token keeps its gradient, where PPO would have none."""
    algorithm = Algorithm(policy_loss=PolicyLoss(cispo=Cispo(weight_cap=1.5)))
    tokens = two_tokens(2.0, 0.5, advantage=1.0)
    found = policy_term(algorithm, tensors(tokens)[0])
    # log pi is -1 + ln 2 and -1 - ln 2.
    assert found.loss[:2].tolist() == pytest.approx([1.5 * 0.306852819, 0.5 * 1.693147181])
    assert gradient(algorithm, tokens)[:2] == pytest.approx([-1.5, -0.5])
    assert found.clipped[:2].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("before", "after", "advantage", "left_out"),
    [
        # A ratio of 10 of a rare token is a small move; one of 1.5 of a likely one is a large one.
        (0.01, 0.10, 1.0, False), (0.5, 0.75, 1.0, True), (0.5, 0.75, -1.0, False),
        (0.5, 0.25, -1.0, True), (0.5, 0.25, 1.0, False), (0.5, 0.25, 0.0, True), (0.5, 0.69, 1.0, False),
    ],
)  # fmt: skip
def test_dppo_on_paper(before: float, after: float, advantage: float, left_out: bool) -> None:
    algorithm = Algorithm(policy_loss=PolicyLoss(dppo_tv=DppoTv(low=0.2, high=0.2)))
    tokens = [Token(0, math.log(after), math.log(before), 0.0, advantage)]
    found = policy_term(algorithm, tensors(tokens)[0])
    assert bool(found.clipped[0]) is left_out
    expected = 0.0 if left_out else -advantage * after / before
    assert gradient(algorithm, tokens) == pytest.approx([expected])
    assert found.loss.tolist() == pytest.approx([expected * math.log(after)])


def test_sapo_on_paper() -> None:
    """At a ratio of 1 the gate is 2 / temperature, and its slope is 1: that of REINFORCE."""
    algorithm = Algorithm(policy_loss=PolicyLoss(sapo=Sapo()))
    tokens = two_tokens(1.0, 2.0, advantage=3.0)
    found = policy_term(algorithm, tensors(tokens)[0])
    # sigmoid(1) = 0.731058579; its slope 0.196611933, times 4 and the ratio of 2.
    assert found.loss[:2].tolist() == pytest.approx([-3 * 2.0, -3 * 4 * 0.731058579])
    assert gradient(algorithm, tokens)[:2] == pytest.approx([-3.0, -3 * 4 * 0.196611933 * 2])
    worse = two_tokens(1.0, 1.0, advantage=-1.0)
    assert policy_term(algorithm, tensors(worse)[0]).loss[0].item() == pytest.approx(2 / 1.05)


@pytest.mark.parametrize("bound", [1e-4, 0.05, 0.4, 3.0])
@pytest.mark.parametrize("corrected", ["none", "truncated by sequence"])
@pytest.mark.parametrize("name", CHOICES)
def test_bad_responses_far_from_the_policy_are_left_out(name: str, corrected: str, bound: float) -> None:
    tokens = random_tokens(3, 0.3)
    plain = Algorithm(policy_loss=CHOICES[name], rollout_correction=CORRECTIONS[corrected])
    masked = plain.model_copy(update={"off_policy_mask": OffPolicyMask(max_divergence=bound)})
    without, found = (policy_term(each, tensors(tokens)[0]) for each in (plain, masked))
    gone = []
    for token in tokens:
        own = siblings(tokens, token)
        divergence = sum(each.engine - each.new for each in own) / len(own)
        gone.append(token.advantage < 0 and divergence > bound)
    assert any(gone) is (bound < 1)
    for index, left_out in enumerate(gone):
        assert found.loss[index] == (0.0 if left_out else without.loss[index])
        assert found.clipped[index] == (1.0 if left_out else without.clipped[index])
    expected = [0.0 if out else slope for slope, out in zip(gradient(plain, tokens), gone, strict=True)]
    assert gradient(masked, tokens) == expected
    assert torch.equal(found.importance, without.importance)


@pytest.mark.parametrize(
    ("advantage", "probabilities", "left_out"),
    [
        # Half as probable as when it was drawn, on (geometric) average: a divergence of ln 2.
        (-1.0, (0.5, 0.5), True), (1.0, (0.5, 0.5), False), (0.0, (0.5, 0.5), False),
        (-1.0, (0.25, 1.0), True), (-1.0, (0.51, 0.51), False), (-1.0, (2.0, 0.1), True),
        (-1.0, (4.0, 4.0), False),
    ],
)  # fmt: skip
def test_off_policy_masks_on_paper(
    advantage: float, probabilities: tuple[float, float], left_out: bool
) -> None:
    """`probabilities`: of the two tokens of a response, relative to those they were drawn with."""
    algorithm = Algorithm(off_policy_mask=OffPolicyMask(max_divergence=0.68))
    found = policy_term(algorithm, tensors(two_tokens(*probabilities, advantage))[0])
    assert found.loss[:2].any().item() is (advantage != 0 and not left_out)
    assert found.loss[2] != 0, "another response does not matter"


def test_who_needs_the_policy_of_the_step_s_beginning() -> None:
    plain = {name: needs_proximal(Algorithm(policy_loss=choice)) for name, choice in CHOICES.items()}
    assert not any(plain.values())
    assert needs_proximal(Algorithm(policy_loss=PolicyLoss.model_validate({"decoupledClip": {}})))
    corrected = Algorithm(policy_loss=CHOICES["gspo"], rollout_correction=ImportanceWeights())
    assert needs_proximal(corrected)
    missing = replace(tensors(random_tokens(1, 0.1))[0], proximal=None)
    with pytest.raises(ValueError, match="gspo needs the log-probabilities of the step's beginning"):
        policy_term(corrected, missing)


def test_every_member_of_the_manifest_s_union_is_in_the_table() -> None:
    assert set(LOSSES) == set(PolicyLoss.one_of)
    assert {choice.chosen[0] for choice in CHOICES.values()} == set(BY_HAND)
