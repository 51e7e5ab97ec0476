"""Losses and advantages of a job's own: what passes their trial, and what each mistake says."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.algorithm import (
    Advantage,
    Algorithm,
    Distillation,
    KlPenalty,
    OffPolicyMask,
    OwnAdvantage,
    OwnLoss,
    PolicyLoss,
    Teacher,
)
from rljob_api.algorithm import ImportanceWeights as Weights
from rljob_runtime.job_errors import OwnFunctionFailed
from rljob_runtime.objective.advantages import GroupRewards, estimator
from rljob_runtime.objective.losses import policy_term
from rljob_runtime.objective.own_loss import own_loss_of
from rljob_runtime.objective.trial import try_own_advantage, try_own_loss
from rljob_runtime.own_functions import FunctionLoadError
from tests.support.runtime.response_tokens import random_tokens, tensors

MODULE = "tests.support.runtime.own_objective"


def losing(name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Algorithm:
    own = OwnLoss(function=f"{MODULE}:{name}", arguments=arguments or {})
    return Algorithm(policy_loss=PolicyLoss(custom=own), **more)


def comparing(name: str, arguments: dict[str, Any] | None = None) -> Algorithm:
    own = OwnAdvantage(function=f"{MODULE}:{name}", arguments=arguments or {})
    return Algorithm(advantage=Advantage(custom=own))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"rollout_correction": Weights(level="sequence", outside="mask")},
        # Where every bad response would be left out.
        {
            "off_policy_mask": OffPolicyMask(max_divergence=1e-9),
            "kl": KlPenalty(),
            "distillation": Distillation(teacher=Teacher(path="t")),
            "entropy_coefficient": 0.1,
        },
    ],
)
def test_a_loss_that_passes(more: dict[str, Any]) -> None:
    try_own_loss(losing("clip", {"high": 0.3}, **more), [])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("never_finite", "gave a loss that is not finite for a token with log-probability -"),
        ("root", "has a gradient that is not finite for a token with log-probability -"),
        ("mean", r"returned a tensor of shape \(\) for 9 tokens, and must return the loss of each token"),
        ("by_count", "gave responses other losses when they were alone in a micro-batch"),
        ("detached", "returned a loss without gradient: it must be computed from tokens.new"),
        ("elsewhere", "has a gradient of 0 by tokens.new at every token that was tried"),
        ("constant", "has a gradient of 0 by tokens.new at every token that was tried"),
        ("number", "returned float, and must return a tensor"),
        ("raises", r"failed: AttributeError: 'Tokens' .*no_such_field.* \(own_objective.py:\d+, in raises\)"),
    ],
)
def test_a_loss_that_does_not(name: str, words: str) -> None:
    with pytest.raises(OwnFunctionFailed, match=words) as error:
        try_own_loss(losing(name), [])
    assert str(error.value).startswith(f'"{MODULE}:{name}" (algorithm.policyLoss.custom) ')
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("samples", [1, 2, 8])
def test_advantages_that_pass(samples: int) -> None:
    try_own_advantage(comparing("ranks", {"scale": 2.0}), samples, [])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("flattened", "returned 24 arrays for 3 groups, and must return one for each"),
        ("one_each", r"returned an array of shape \(\) for a group of 8 responses"),
        ("words", "returned 'good' for a group, and must return numbers"),
        ("nothing", "returned NoneType, and must return a list of arrays"),
        ("by_variance", r"are not finite for group 2 \(row 2 of the data\), with rewards 1, 1, 1"),
        ("changing", "returned other advantages for the same rewards when it was called again"),
        ("unknown_row", r"failed: KeyError: 0 \(own_objective.py:\d+, in unknown_row\)"),
    ],
)
def test_advantages_that_do_not(name: str, words: str) -> None:
    with pytest.raises(OwnFunctionFailed, match=words) as error:
        try_own_advantage(comparing(name), 8, [])
    assert str(error.value).startswith(f'"{MODULE}:{name}" (algorithm.advantage.custom) ')


def test_the_documentation_s_examples_pass(folder: Path) -> None:
    page = Path(__file__).parents[4] / "docs" / "algorithms.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    (folder / "documented_objective.py").write_text(code)
    loss = OwnLoss(function="documented_objective:squared", arguments={"weight": 0.1})
    try_own_loss(Algorithm(policy_loss=PolicyLoss(custom=loss)), [folder])
    ranks = OwnAdvantage(function="documented_objective:right_or_wrong")
    for samples in (1, 2, 8):
        try_own_advantage(Algorithm(advantage=Advantage(custom=ranks)), samples, [folder])


def test_an_own_loss_is_that_of_the_table_with_the_same_formula() -> None:
    own, clip = losing("clip"), Algorithm()
    for given, expected in zip(_gradients(own), _gradients(clip), strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-12, atol=0)


def _gradients(algorithm: Algorithm) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, new = tensors(random_tokens(3, 0.4))
    found = policy_term(algorithm, tokens, own_loss_of(algorithm))
    found.loss.sum().backward()
    assert new.grad is not None
    return found.loss.detach(), new.grad


def test_own_advantages_are_as_returned_and_0_for_failed_responses() -> None:
    counted = np.array([True, True, False, True])
    rewards = np.array([3.0, 1.0, 99.0, 2.0])
    group = GroupRewards(0, 0, rewards, counted, counted * 10)
    (found,) = estimator(comparing("ranks"))([group])
    assert found.dtype == np.float32 and found.tolist() == [2, -2, 0, 0]


def test_a_loss_that_is_not_finite_has_no_finite_gradient() -> None:
    """So that no rank takes the update, though one rank alone has that token."""
    algorithm = losing("never_finite")
    assert not torch.isfinite(_gradients(algorithm)[1]).any()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path, modules = list(sys.path), set(sys.modules)
    (tmp_path / "neighbour.py").write_text("FACTOR = 2.0\n")
    (tmp_path / "beside_the_manifest.py").write_text(
        "def late(tokens, old):\n"
        "    from neighbour import FACTOR\n"
        "    return -FACTOR * tokens.advantages * tokens.new\n"
    )
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_module_beside_the_manifest_is_found_and_shadows_nothing(folder: Path) -> None:
    own = OwnLoss(function="beside_the_manifest:late")
    before = list(sys.path)
    try_own_loss(Algorithm(policy_loss=PolicyLoss(custom=own)), [folder])
    assert sys.path == [*before, str(folder)]


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (losing("clipp"), "has no function clipp. Did you mean clip?"),
        (
            losing("nothing"),
            "its first 2 parameters must take the Tokens and the log-probabilities that ratios",
        ),
        (losing("clip", {"hihg": 0.3}), "has no argument hihg. Did you mean high?"),
        (comparing("clip"), "needs the argument old: set it in algorithm.advantage.custom.arguments"),
    ],
)
def test_what_cannot_be_loaded(algorithm: Algorithm, words: str) -> None:
    with pytest.raises(FunctionLoadError) as error:
        if algorithm.policy_loss.custom is not None:
            try_own_loss(algorithm, [])
        else:
            try_own_advantage(algorithm, 8, [])
    assert words in str(error.value)
