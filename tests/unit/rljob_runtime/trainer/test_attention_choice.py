"""Which attention a model gets, and that it is right."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from rljob_runtime.manifest.meta_model import on_meta
from rljob_runtime.trainer import attention_choice, segments
from rljob_runtime.trainer.attention import LayOut
from rljob_runtime.trainer.attention_call import AttentionCall
from rljob_runtime.trainer.attention_choice import (
    Heads,
    choose_attention,
    difference,
    packed_form,
    shared_form,
)
from rljob_runtime.trainer.rectangles import Rectangles
from rljob_runtime.trainer.segments import Segments
from rljob_runtime.trainer.varlen import Runs, Varlen
from tests.support.runtime import varlen_on_cpu

CPU = torch.device("cpu")
HEADS = Heads(4, 2, 32, (8,))
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_a_cpu_has_rectangles() -> None:
    choice = choose_attention(CPU, torch.bfloat16, HEADS)
    assert (choice.name, choice.why) == ("rectangles", "a cpu has no other")


def with_kernel(monkeypatch: pytest.MonkeyPatch, kernel: LayOut) -> None:
    monkeypatch.setattr(attention_choice, "_kernel_of", lambda device: ("varlen", kernel))


def test_a_kernel_that_is_right_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernel(monkeypatch, Rectangles.of)
    assert choose_attention(CPU, torch.bfloat16, HEADS).name == "varlen"
    assert choose_attention(CPU, torch.bfloat16, HEADS, "rectangles").name == "rectangles"
    other = choose_attention(CPU, torch.float32, HEADS)
    assert (other.name, other.why) == ("rectangles", "kernels of cpu do not take torch.float32")
    other = choose_attention(CPU, torch.bfloat16, replace(HEADS, capped=True))
    assert (other.name, other.why) == ("rectangles", "kernels of cpu have no caps of scores")
    assert choose_attention(CPU, torch.bfloat16, replace(HEADS, sunk=True)).name == "varlen"
    monkeypatch.setattr(attention_choice, "_kernel_of", lambda device: ("ascend", Rectangles.of))
    other = choose_attention(CPU, torch.bfloat16, replace(HEADS, sunk=True))
    assert (other.name, other.why) == ("rectangles", "kernels of cpu have no sinks")


class _NoSinks(Rectangles):
    """A kernel that ignores sinks."""

    def attend(self, call: AttentionCall) -> Tensor:
        assert call.sinks is not None
        return super().attend(call._replace(sinks=None)) + 0 * call.sinks.sum()


def test_a_kernel_that_ignores_sinks_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernel(monkeypatch, _NoSinks.of)
    choice = choose_attention(CPU, torch.bfloat16, replace(HEADS, sunk=True))
    assert choice.name == "rectangles"
    assert "from those of float32" in choice.why


class _NoWindow(Rectangles):
    """A kernel that ignores windows."""

    def attend(self, call: AttentionCall) -> Tensor:
        return super().attend(call._replace(window=None))


def test_a_kernel_that_is_wrong_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernel(monkeypatch, _NoWindow.of)
    choice = choose_attention(CPU, torch.bfloat16, HEADS)
    assert choice.name == "rectangles"
    assert "from those of float32 (window: 8)" in choice.why
    assert choose_attention(CPU, torch.bfloat16, Heads(4, 2, 32)).name == "varlen", "no layer has a window"


class _Gone(torch.autograd.Function):
    """What goes through it has no gradient that is a number."""

    @staticmethod
    def forward(context: Any, given: Tensor) -> Tensor:
        return given.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient * float("nan")


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_a_kernel_whose_gradients_are_no_numbers_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    class _NoGradient(Rectangles):
        def attend(self, call: AttentionCall) -> Tensor:
            return super().attend(call._replace(**{name: _Gone.apply(getattr(call, name))}))

    with_kernel(monkeypatch, _NoGradient.of)
    choice = choose_attention(CPU, torch.bfloat16, HEADS)
    assert (choice.name, choice.why.split(": ", 1)[1]) == (
        "rectangles", "its numbers are nan from those of float32 (window: None)",
    )  # fmt: skip


def _one_size(call: AttentionCall) -> Tensor:
    if call.key.shape[-1] != call.value.shape[-1]:
        raise ValueError("keys and values must be of one size")
    return Rectangles.of([5, 70, 1, 33], CPU).attend(call)


def test_values_of_another_size_than_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with latent attention: a kernel that cannot have them is found out before the first step."""
    latent = Heads(4, 4, 48, value=32)
    with_kernel(monkeypatch, Rectangles.of)
    assert choose_attention(CPU, torch.bfloat16, latent).name == "varlen"
    with_kernel(monkeypatch, lambda lengths, device: SimpleNamespace(attend=_one_size))
    assert choose_attention(CPU, torch.bfloat16, HEADS).name == "varlen"
    assert choose_attention(CPU, torch.bfloat16, latent).why.endswith("must be of one size")


def test_a_model_with_sinks_has_the_layout_that_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernel(monkeypatch, Varlen.of)
    with varlen_on_cpu.installed():
        sunk = choose_attention(CPU, torch.bfloat16, replace(HEADS, sunk=True))
        plain = choose_attention(CPU, torch.bfloat16, HEADS)
    assert (sunk.lay_out, plain.lay_out) == (Varlen.with_sinks, Varlen.of)


def test_a_kernel_that_raises_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    # There is no FlashAttention on a CPU.
    with_kernel(monkeypatch, Varlen.of)
    choice = choose_attention(CPU, torch.bfloat16, HEADS)
    assert choice.name == "rectangles"
    assert choice.why.startswith("the kernel of cpu does not serve: ")


def _lengths(runs: Runs) -> list[int]:
    return runs.ends.diff().tolist()


def _right(query: Tensor, key: Tensor, value: Tensor, queries: Runs, keys: Runs, *options: Any) -> Tensor:
    plain = Segments.of(_lengths(queries), _lengths(keys), CPU, "rectangles")
    return plain.attend(query, key, value, *options[:2])


def _from_the_first_key(
    query: Tensor, key: Tensor, value: Tensor, queries: Runs, keys: Runs, *options: Any
) -> Tensor:
    """A kernel that takes a segment's queries for its first tokens, as FlashAttention before 2.1 did."""
    seen = [
        torch.cat(
            [
                part[:count]
                for part, count in zip(torch.split(each, _lengths(keys)), _lengths(queries), strict=True)
            ]
        )
        for each in (key, value)
    ]
    return _right(query, *seen, queries, queries, *options)


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (None, "NotImplementedError: "),
        (_from_the_first_key, "from those of float32"),
    ],
)
def test_a_kernel_that_is_wrong_for_shared_samples_alone(
    monkeypatch: pytest.MonkeyPatch, kernel: Any, why: str
) -> None:
    """It is taken where ranks share none. Without another there is no FlashAttention on a CPU."""
    with_kernel(monkeypatch, Rectangles.of)
    if kernel is not None:
        monkeypatch.setattr(segments, "varlen_attention", kernel)
    assert choose_attention(CPU, torch.bfloat16, HEADS).name == "varlen"
    choice = choose_attention(CPU, torch.bfloat16, HEADS, shared=True)
    assert choice.name == "rectangles"
    assert re.match(f"the kernel of cpu does not serve with fewer queries than keys: .*({why})", choice.why)


def test_a_kernel_that_is_right_for_shared_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernel(monkeypatch, Rectangles.of)
    monkeypatch.setattr(segments, "varlen_attention", _right)
    assert choose_attention(CPU, torch.bfloat16, HEADS, shared=True).name == "varlen"


def test_heads_of_a_model() -> None:
    def of(kind: str, **fields: Any) -> Heads:
        small = {"num_hidden_layers": 1, "hidden_size": 512, "vocab_size": 8, "num_local_experts": 2}
        config = transformers.AutoConfig.for_model(kind, **small | fields)
        return Heads.of(on_meta(config))

    assert of("qwen3", num_attention_heads=16, num_key_value_heads=8, head_dim=128) == Heads(16, 8, 128)
    assert of("llama", num_attention_heads=8) == Heads(8, 8, 64)
    window = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 512}
    assert of("qwen3", use_sliding_window=True, **window) == Heads(8, 2, 64, (512,))
    latent = of(
        "deepseek_v3", num_attention_heads=16, num_key_value_heads=16, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=96,
    )  # fmt: skip
    assert latent == Heads(16, 16, 192, (), 96)
    assert of("gemma2", **window) == Heads(8, 2, 64, (512,), capped=True)
    assert of("gpt_oss", **window) == Heads(8, 2, 64, (512,), sunk=True)
    assert of("gemma2", attn_logit_softcapping=None, **window) == Heads(8, 2, 64, (512,))


@gpu
@pytest.mark.parametrize(
    "heads",
    [
        Heads(4, 4, 64),
        Heads(16, 8, 128, (16,)),
        Heads(6, 2, 96, (3,)),
        Heads(64, 8, 64, (16,), sunk=True),
    ],
)
def test_varlen_on_a_gpu(heads: Heads) -> None:
    device = torch.device("cuda")
    for window in (None, *heads.windows):
        whole = Varlen.with_sinks if heads.sunk else Varlen.of
        for form in (packed_form(whole), shared_form("varlen")):
            assert difference(form, device, torch.bfloat16, heads, window) < 0.02
    assert choose_attention(device, torch.bfloat16, heads, shared=True).name == "varlen"
