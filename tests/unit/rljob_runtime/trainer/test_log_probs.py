"""Log-probabilities and entropies without the logits of all tokens, against the plain form."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from rljob_runtime.trainer import log_probs
from rljob_runtime.trainer.log_probs import Scores, Scoring, Slopes, plain_scores, scores
from rljob_runtime.trainer.sampling_distribution import Distribution
from tests.bench.logits_memory import Peak

TOKENS, WIDTH, VOCABULARY = 23, 12, 40
DISTRIBUTIONS = {
    "plain": (Distribution(), None),
    "temperature": (Distribution(0.7), None),
    "top-k": (Distribution(1.3, top_k=5), None),
    "top-p": (Distribution(0.9, top_p=0.8), None),
    "all": (Distribution(0.6, top_k=9, top_p=0.9), None),
    "capped": (Distribution(0.7), 3.0),
    "all, capped": (Distribution(0.6, top_k=9, top_p=0.9), 3.0),
}
"""And the cap of logits."""


class Inputs:
    """Hidden states, a head and what was drawn, the same at each call."""

    def __init__(self, dtype: torch.dtype, bias: bool = False) -> None:
        torch.manual_seed(3)
        self.hidden = torch.randn(TOKENS, WIDTH, dtype=torch.float64).to(dtype).requires_grad_()
        self.weight = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64).to(dtype).requires_grad_()
        self.bias = torch.randn(VOCABULARY, dtype=torch.float64).to(dtype).requires_grad_() if bias else None
        self.targets = torch.randint(VOCABULARY, (TOKENS,))
        self.slopes = torch.randn(2, TOKENS, dtype=torch.float64)

    def gradients(self, found: Scores, entropy: bool) -> list[Tensor]:
        """Of a sum of both, weighed unlike from token to token."""
        total = (found.log_probs * self.slopes[0]).sum()
        if entropy:
            assert found.entropies is not None
            total = total + (found.entropies * self.slopes[1]).sum()
        inputs = [each for each in (self.hidden, self.weight, self.bias) if each is not None]
        return list(torch.autograd.grad(total, inputs))


def both(inputs: Inputs, how: Scoring) -> tuple[Scores, Scores]:
    found = scores(inputs.hidden, inputs.weight, inputs.bias, inputs.targets, how)
    plain = plain_scores(functional.linear(inputs.hidden, inputs.weight, inputs.bias), inputs.targets, how)
    return found, plain


@pytest.mark.parametrize("rows", [1, 5, TOKENS, 1000])
@pytest.mark.parametrize("entropy", ["none", "value", "gradient"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_values_and_gradients_are_those_of_the_plain_form(
    monkeypatch: pytest.MonkeyPatch, name: str, entropy: Any, rows: int
) -> None:
    monkeypatch.setattr(log_probs, "_SLICE", 3 * VOCABULARY)
    inputs = Inputs(torch.float64, bias=rows == 5)
    distribution, cap = DISTRIBUTIONS[name]
    found, plain = both(inputs, Scoring(distribution, entropy, rows * VOCABULARY, cap=cap))
    torch.testing.assert_close(found.log_probs, plain.log_probs, rtol=1e-14, atol=1e-14)
    assert not found.log_probs._is_view(), "FSDP wants tensors that are none"
    assert (found.entropies is None) == (entropy == "none")
    if found.entropies is not None:
        torch.testing.assert_close(found.entropies, plain.entropies, rtol=1e-13, atol=1e-13)
        assert found.entropies.requires_grad == (entropy == "gradient")
    trained = entropy == "gradient"
    for one, other in zip(inputs.gradients(found, trained), inputs.gradients(plain, trained), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("cap", [None, 3.0])
def test_gradients_are_those_of_finite_differences(cap: float | None) -> None:
    inputs, tokens, vocabulary = Inputs(torch.float64), 7, 11  # each number costs two calls
    hidden = inputs.hidden[:tokens].detach().requires_grad_()
    weight = inputs.weight[:vocabulary].detach().requires_grad_()
    targets = inputs.targets[:tokens] % vocabulary
    how = Scoring(Distribution(0.7), "gradient", 3 * vocabulary, cap=cap)

    def both_scores(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        found = scores(hidden, weight, None, targets, how)
        assert found.entropies is not None
        return found.log_probs, found.entropies

    assert torch.autograd.gradcheck(both_scores, (hidden, weight))
    logits = hidden @ weight.T
    x = (logits if cap is None else cap * torch.tanh(logits / cap)) / 0.7
    expected = x.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(both_scores(hidden, weight)[0], expected)


@pytest.mark.parametrize("entropic", [False, True])
@pytest.mark.parametrize(("temperature", "cap"), [(1.0, None), (0.7, None), (0.7, 3.0)])
def test_what_a_compiler_fuses_is_the_same(temperature: float, cap: float | None, entropic: bool) -> None:
    inputs = Inputs(torch.float64)
    logits = functional.linear(inputs.hidden, inputs.weight).detach()
    how = Scoring(Distribution(temperature), "gradient", 1, cap=cap)
    plain = log_probs.statistics_of_logits(logits, inputs.targets, how)
    fused = log_probs._fusible_statistics(logits, inputs.targets, temperature, cap, True)
    for one, other in zip(plain, fused, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-14)
    _, total, entropy = plain
    given = Slopes(inputs.targets, total, entropy, inputs.slopes[0], inputs.slopes[1] if entropic else None)
    torch.testing.assert_close(
        log_probs._fusible_gradient(logits, *given, temperature, cap),
        log_probs.gradient_of_logits(logits, given, how),
        rtol=1e-14,
        atol=1e-14,
    )


def _fused(hidden: Tensor, weight: Tensor, targets: Tensor, how: Scoring) -> Scores:
    return scores(hidden, weight, None, targets, how)


def _plain(hidden: Tensor, weight: Tensor, targets: Tensor, how: Scoring) -> Scores:
    return plain_scores(hidden @ weight.T, targets, how)


@pytest.mark.parametrize("score", [_fused, _plain])
@pytest.mark.parametrize("temperature", [1.0, 0.3, 0.1, 0.01])
@pytest.mark.parametrize("above", [0, 500])
def test_entropies_of_low_temperatures_keep_their_digits(
    score: Callable[..., Scores], temperature: float, above: float
) -> None:
    """In float32: as many as x has, however large all logits are."""
    torch.manual_seed(0)
    weight, targets = torch.randn(400, 64) / 2, torch.randint(400, (TOKENS,))
    # One column more, which adds the same to all logits.
    weight = torch.cat([weight, torch.full((400, 1), 1.0)], dim=1)
    hidden = torch.cat([torch.randn(TOKENS, 64), torch.full((TOKENS, 1), float(above))], dim=1)
    asked = hidden.requires_grad_()
    found = score(asked, weight, targets, Scoring(Distribution(temperature), "gradient", 10**9))
    assert found.entropies is not None
    (gradient,) = torch.autograd.grad(found.entropies.sum(), asked)
    x = ((hidden.detach() @ weight.T) / temperature).double()
    log_p = x.log_softmax(-1)
    exact = -(log_p.exp() * log_p).sum(-1)
    slopes = -log_p.exp() * (log_p + exact[:, None]) / temperature @ weight.double()
    # Of x there is this much in float32, and of exp(x) as much of a share.
    digits = float(x.abs().max()) * 2**-23
    assert found.entropies.min() >= 0
    torch.testing.assert_close(found.entropies.double(), exact, rtol=8 * digits, atol=8 * digits)
    assert (gradient - slopes).norm() <= 32 * digits * slopes.norm()


def test_bfloat16_is_rounded_where_the_plain_form_rounds() -> None:
    """Logits and gradients of logits are bfloat16, the sums over chunks are not."""
    inputs = Inputs(torch.bfloat16)
    how = Scoring(Distribution(0.8), "gradient", 4 * VOCABULARY)
    found, plain = both(inputs, how)
    torch.testing.assert_close(found.log_probs, plain.log_probs, rtol=1e-6, atol=1e-6)
    assert found.log_probs.dtype == torch.float32
    for one, other in zip(inputs.gradients(found, True), inputs.gradients(plain, True), strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


def test_a_head_that_is_not_trained_gets_no_gradient() -> None:
    inputs = Inputs(torch.float64)
    found = scores(
        inputs.hidden, inputs.weight.detach(), None, inputs.targets, Scoring(Distribution(), "none", 1)
    )
    (gradient,) = torch.autograd.grad(found.log_probs.sum(), inputs.hidden)
    plain = plain_scores(inputs.hidden @ inputs.weight.T, inputs.targets, Scoring(Distribution(), "none", 1))
    (expected,) = torch.autograd.grad(plain.log_probs.sum(), inputs.hidden)
    torch.testing.assert_close(gradient, expected, rtol=1e-13, atol=1e-13)


class _Largest(TorchDispatchMode):
    """The most numbers in one tensor that was made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        made = function(*arguments, **(options or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, Tensor):
                self.numbers = max(self.numbers, each.numel())
        return made


@pytest.mark.parametrize(("rows", "held"), [(4, 4), (50, 16), (16, 16)])
def test_no_more_logits_than_allowed(monkeypatch: pytest.MonkeyPatch, rows: int, held: int) -> None:
    """`held` rows: of 16, and as many as are worked on at a time."""
    monkeypatch.setattr(log_probs, "_SLICE", 2 * VOCABULARY)
    torch.manual_seed(0)
    hidden = torch.randn(16, 2, requires_grad=True)
    weight = torch.randn(VOCABULARY, 2, requires_grad=True)
    targets = torch.randint(VOCABULARY, (16,))
    with _Largest() as largest:
        found = scores(hidden, weight, None, targets, Scoring(Distribution(0.5), "value", rows * VOCABULARY))
        found.log_probs.sum().backward()
    assert largest.numbers == held * VOCABULARY


def test_logits_of_one_chunk_alone_are_there_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held beside them is small: copies of a row, and gradients of a narrow head."""
    vocabulary, chunk = 4000, 32
    monkeypatch.setattr(log_probs, "_SLICE", vocabulary)
    hidden = torch.randn(4 * chunk, 2, requires_grad=True)
    weight = torch.randn(vocabulary, 2, requires_grad=True)
    how = Scoring(Distribution(0.5), "value", chunk * vocabulary)
    row = vocabulary * weight.itemsize
    peak = Peak()
    with peak:
        found = scores(hidden, weight, None, torch.randint(vocabulary, (len(hidden),)), how)
        forward = peak.most
        found.log_probs.sum().backward()
    assert chunk * row < forward < 1.5 * chunk * row
    assert peak.most < 1.5 * chunk * row


@pytest.mark.parametrize("cap", [None, 3.0])
def test_what_is_compiled_serves_micro_batches_of_any_size(
    monkeypatch: pytest.MonkeyPatch, cap: float | None
) -> None:
    """Once for the forward and once for the backward pass: it takes seconds, in the midst of a step."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    monkeypatch.setattr(log_probs, "_SLICE", 8 * VOCABULARY)
    log_probs._compiled.cache_clear()
    weight = torch.randn(VOCABULARY, WIDTH).requires_grad_()
    how = Scoring(Distribution(), "none", 10**6, compiled=True, cap=cap)
    counts = []
    try:
        for tokens in (21, 5, 30, 8, 7, 1, 17, 3):
            hidden, targets = torch.randn(tokens, WIDTH), torch.randint(VOCABULARY, (tokens,))
            found = scores(hidden, weight, None, targets, how)
            logits = hidden @ weight.T
            plain = (logits if cap is None else cap * torch.tanh(logits / cap)).log_softmax(-1)
            torch.testing.assert_close(found.log_probs, plain.gather(1, targets[:, None])[:, 0])
            found.log_probs.sum().backward()
            counts.append(counter.frame_count)
    finally:
        log_probs._compiled.cache_clear()
    assert counts == [2] * 8
