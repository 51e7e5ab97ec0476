"""Attention by rectangles: that of each sample alone, and gradients without a sort of indices."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rljob_runtime.trainer.attention_call import AttentionCall
from rljob_runtime.trainer.block_attention import Rule, in_blocks
from rljob_runtime.trainer.rectangles import Rectangles

CPU = torch.device("cpu")
HEADS, SHARED, SIZE = 4, 2, 8
LENGTHS = {
    "one sample": [5],
    "of one token": [1],
    "alike": [7, 7, 7],
    "short ones, in one rectangle": [1, 64, 3, 40],
    "two rectangles, in no order": [90, 3, 100, 1, 61],
    "several of each": [300, 20, 250, 120, 119, 64, 65, 2],
}


def drawn(tokens: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return [
        torch.randn(1, heads, tokens, SIZE, generator=generator, dtype=torch.float64).requires_grad_()
        for heads in (HEADS, SHARED, SHARED)
    ]


def layer() -> torch.nn.Module:
    made = torch.nn.Module()
    made.num_key_value_groups = HEADS // SHARED  # type: ignore[assignment]
    return made


def each_alone(inputs: list[Tensor], lengths: list[int], window: int | None) -> Tensor:
    parts = []
    for query, key, value in zip(*(each.split(lengths, dim=2) for each in inputs), strict=True):
        count = query.shape[2]
        seen = torch.ones(count, count, dtype=torch.bool).tril()
        if window is not None:
            seen &= ~seen.tril(-window)
        parts.append(F.scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=True))
    return torch.cat(parts, dim=2).transpose(1, 2)


@pytest.mark.parametrize("name", LENGTHS)
def test_a_cap_of_scores_and_sinks_are_those_of_each_sample_alone(name: str) -> None:
    lengths = LENGTHS[name]
    inputs, slope = drawn(sum(lengths)), torch.randn(1, sum(lengths), HEADS, SIZE, dtype=torch.float64)
    sinks, rule = torch.randn(HEADS, dtype=torch.float64, requires_grad=True), Rule(None, 3, 2.0)
    call = AttentionCall(layer(), inputs[0], inputs[1], inputs[2], None, 3, 2.0, sinks)
    parts = zip(*(each.split(lengths, dim=2) for each in inputs), strict=True)
    expected = torch.cat([in_blocks(*part, sinks, rule) for part in parts], dim=2).transpose(1, 2)
    found, of = Rectangles.of(lengths, CPU).attend(call), (*inputs, sinks)
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        *(torch.autograd.grad((each * slope).sum(), of) for each in (found, expected)), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("name", LENGTHS)
def test_results_and_gradients_are_those_of_each_sample_alone(name: str, window: int | None) -> None:
    lengths = LENGTHS[name]
    inputs, slope = drawn(sum(lengths)), torch.randn(1, sum(lengths), HEADS, SIZE, dtype=torch.float64)
    call = AttentionCall(layer(), inputs[0], inputs[1], inputs[2], None, window)
    found, expected = Rectangles.of(lengths, CPU).attend(call), each_alone(inputs, lengths, window)
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        *(torch.autograd.grad((each * slope).sum(), inputs) for each in (found, expected)), strict=True
    ):
        torch.testing.assert_close(one, other)


class Called(TorchDispatchMode):
    """Knows the names of operators that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_gradients_are_moved_and_not_added_up_by_sorted_indices() -> None:
    """As a GPU does it for indexing: sorted for each rectangle, and padding, which repeats a token, added to
    that token's gradient row by row."""
    lengths = LENGTHS["several of each"]
    inputs = drawn(sum(lengths))
    with Called() as called:
        found = Rectangles.of(lengths, CPU).attend(AttentionCall(layer(), *inputs, None, None))  # type: ignore[call-arg]
        found.sum().backward()  # type: ignore[no-untyped-call]
    assert not {name for name in called.names if "index_put" in name or name in {"index", "index_add"}}
    assert called.names.count("index_select") == 3 + 1 + 3, "once for each input, whatever the rectangles"


def test_no_kernel_is_chosen_that_is_made_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN makes a plan for each shape that it meets, which takes longer than many steps' attention;
    rectangles have ever other shapes."""
    asked = []

    def attention(*args: Any, **named: Any) -> tuple[Tensor, None]:
        asked.append(torch.backends.cuda.cudnn_sdp_enabled())
        return sdpa_attention_forward(*args, **named)

    before = torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.setattr("transformers.integrations.sdpa_attention.sdpa_attention_forward", attention)
    Rectangles.of([5, 90], CPU).attend(AttentionCall(layer(), *drawn(95), None, None))  # type: ignore[call-arg]
    assert asked == [False, False]
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
