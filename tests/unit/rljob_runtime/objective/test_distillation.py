"""On-policy distillation: what a teacher adds to advantages, worked by hand, and that it is the gradient of
the reverse KL, whoever drew the tokens."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rljob_api.algorithm import (
    Advantage,
    Algorithm,
    Clip,
    Distillation,
    Gspo,
    NoAdvantage,
    OffPolicyMask,
    PolicyLoss,
    Sapo,
    Teacher,
    TruncatedReinforce,
)
from rljob_runtime.objective.distillation import teacher_kl, towards_teacher
from rljob_runtime.objective.losses import policy_term
from rljob_runtime.objective.tokens import Tokens
from rljob_runtime.trainer.loss import token_loss
from tests.support.runtime.response_tokens import Token, random_tokens, tensors

PLAIN = PolicyLoss(truncated_reinforce=TruncatedReinforce(weight_cap=1000.0))


def taught(coefficient: float = 1.0, loss: PolicyLoss = PLAIN) -> Algorithm:
    return Algorithm(
        advantage=Advantage(none=NoAdvantage()),
        policy_loss=loss,
        distillation=Distillation(teacher=Teacher(path="t"), coefficient=coefficient),
    )


@pytest.mark.parametrize(
    ("policy", "teacher", "advantage", "coefficient", "expected"),
    [
        (0.5, 0.5, 0.0, 1.0, 0.0),
        (0.5, 0.25, 0.0, 1.0, -math.log(2)),
        (0.25, 0.5, 0.0, 1.0, math.log(2)),
        (0.25, 0.5, -3.0, 1.0, math.log(2) - 3),
        (0.25, 0.5, -3.0, 0.5, math.log(2) / 2 - 3),
    ],
)
def test_advantages_on_paper(
    policy: float, teacher: float, advantage: float, coefficient: float, expected: float
) -> None:
    # Whatever probability the engine that drew the token gave it.
    token = Token(0, math.log(policy), -9.0, -7.0, advantage, teacher=math.log(teacher))
    given, _ = tensors([token])
    setting = Distillation(teacher=Teacher(path="t"), coefficient=coefficient)
    found = towards_teacher(setting, given).advantages
    assert float(found) == pytest.approx(expected, abs=1e-12) and not found.requires_grad
    assert float(teacher_kl(given)) == pytest.approx(math.log(policy / teacher))


@pytest.mark.parametrize(
    "loss", [PLAIN, PolicyLoss(clip=Clip()), PolicyLoss(gspo=Gspo()), PolicyLoss(sapo=Sapo())], ids=str
)
def test_every_loss_is_that_of_the_sum_of_both_advantages(loss: PolicyLoss) -> None:
    tokens = random_tokens(3, 0.3)
    both = [replace(each, advantage=each.advantage + 0.7 * (each.teacher - each.new)) for each in tokens]
    found = policy_term(taught(0.7, loss), tensors(tokens)[0])
    expected = policy_term(Algorithm(policy_loss=loss), tensors(both)[0])
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-12, atol=1e-12)


def test_what_is_reported_is_the_divergence_without_its_coefficient() -> None:
    tokens = random_tokens(3, 0.3)
    given, _ = tensors(tokens)
    found = token_loss(taught(0.1), given)
    expected = [each.new - each.teacher for each in tokens]
    np.testing.assert_allclose(found.teacher_kl.numpy(), expected, rtol=1e-12)
    assert not token_loss(Algorithm(), given).teacher_kl.any()


def test_without_the_teachers_log_probabilities_it_is_an_error() -> None:
    given, _ = tensors(random_tokens(3, 0.3))
    with pytest.raises(ValueError, match="distillation needs the teacher's log-probabilities"):
        token_loss(taught(), replace(given, teacher=None))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_response_is_a_bad_one_by_its_reward_and_not_by_the_teacher(advantage: float) -> None:
    """The engine found it far likelier than the policy does."""
    algorithm = Algorithm(
        distillation=Distillation(teacher=Teacher(path="t")),
        off_policy_mask=OffPolicyMask(max_divergence=0.1),
    )
    # The teacher turns the sign of what the reward says.
    tokens = [Token(0, -3.0, -1.0, -1.0, advantage, teacher=-3.0 - 5 * advantage)]
    found = policy_term(algorithm, tensors(tokens)[0]).loss.detach()
    assert (float(found) == 0.0) is (advantage < 0)


@pytest.mark.parametrize("drawn_by", ["the policy", "an older policy"])
def test_the_gradient_is_that_of_the_reverse_kl(drawn_by: str) -> None:
    """Every token of a vocabulary of 6, each weighed by how often it is drawn: the expected gradient by the
    policy's logits, against central differences of sum(p * log(p / p_T))."""
    generator = torch.Generator().manual_seed(4)
    logits, teacher, older = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(3))
    drawn = (logits if drawn_by == "the policy" else older).log_softmax(0)
    leaf = logits.clone().requires_grad_()
    tokens = Tokens(
        leaf.log_softmax(0), drawn, torch.zeros(6, dtype=torch.float64), torch.arange(6), None,
        teacher=teacher.log_softmax(0),
    )  # fmt: skip
    loss = (policy_term(taught(), tokens).loss * drawn.exp()).sum()
    (found,) = torch.autograd.grad(loss, leaf)

    def divergence(moved: torch.Tensor) -> float:
        policy = moved.log_softmax(0)
        return float((policy.exp() * (policy - teacher.log_softmax(0))).sum())

    h = 1e-6
    sides = [(divergence(logits + h * unit), divergence(logits - h * unit)) for unit in torch.eye(6).double()]
    expected = [(up - down) / (2 * h) for up, down in sides]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-8)
    assert max(map(abs, expected)) > 0.05


def test_a_policy_that_agrees_with_its_teacher_stays() -> None:
    given, new = tensors(random_tokens(3, 0.3))
    same = replace(given, advantages=torch.zeros_like(given.advantages), teacher=given.new.detach())
    policy_term(taught(), same).loss.sum().backward()
    assert new.grad is not None and not new.grad.any()
