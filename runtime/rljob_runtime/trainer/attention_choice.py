"""Which attention a model gets on a device.

Guarantees: a kernel is taken only after it has given, on this device and with this model's heads, what plain
attention in float32 gives, forward and backward; where it has not, the reason is told.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rljob_runtime.trainer.attention import LayOut
from rljob_runtime.trainer.attention_call import AttentionCall
from rljob_runtime.trainer.rectangles import Rectangles
from rljob_runtime.trainer.varlen import AscendVarlen, Varlen

_PROBE = (5, 70, 1, 33)
"""Lengths of the samples that a kernel is tried with."""
_FAR = 0.05
"""A kernel's numbers may be so far from float32's, of the largest of them."""


@dataclass(frozen=True)
class AttentionChoice:
    """What a model's attention is computed with."""

    name: Literal["varlen", "ascend", "rectangles"]
    why: str
    """In words, for the log."""
    lay_out: LayOut


@dataclass(frozen=True)
class Heads:
    """The shape of a model's attention."""

    query: int
    shared: int
    """Heads of keys and values."""
    size: int
    windows: tuple[int, ...] = ()
    """Of its sliding windows, in tokens; empty where every layer sees all."""

    @classmethod
    def of(cls, config: Any) -> "Heads":
        """Of a model's configuration in transformers."""
        query = config.num_attention_heads
        window = getattr(config, "sliding_window", None)
        return cls(
            query,
            getattr(config, "num_key_value_heads", None) or query,
            getattr(config, "head_dim", None) or config.hidden_size // query,
            () if window is None else (window,),
        )


def choose_attention(
    device: torch.device,
    dtype: torch.dtype,
    heads: Heads,
    wanted: Literal["auto", "rectangles"] = "auto",
) -> AttentionChoice:
    """The fastest attention that serves; with `wanted` rectangles those, whatever the device has."""
    name, kernel = _kernel_of(device)
    if wanted == "rectangles":
        return AttentionChoice("rectangles", "they are asked for", Rectangles.of)
    if kernel is None:
        return AttentionChoice("rectangles", f"a {device.type} has no other", Rectangles.of)
    if dtype not in (torch.bfloat16, torch.float16):
        return AttentionChoice("rectangles", f"kernels of {device.type} do not take {dtype}", Rectangles.of)
    fault = _fault(kernel, device, dtype, heads)
    if fault is not None:
        return AttentionChoice(
            "rectangles", f"the kernel of {device.type} does not serve: {fault}", Rectangles.of
        )
    return AttentionChoice(name, "it gives what plain attention gives", kernel)


def _kernel_of(device: torch.device) -> tuple[Literal["varlen", "ascend", "rectangles"], LayOut | None]:
    if device.type == "cuda":
        return "varlen", Varlen.of
    return ("ascend", AscendVarlen.of) if device.type == "npu" else ("rectangles", None)


def _fault(kernel: LayOut, device: torch.device, dtype: torch.dtype, heads: Heads) -> str | None:
    """What is wrong with a kernel; None where nothing is."""
    for window in (None, *(min(each, 16) for each in heads.windows)):
        try:
            far = difference(kernel, device, dtype, heads, window)
        # Whatever a kernel raises that does not know the device, the heads or the window, there is another.
        except Exception as error:  # noqa: BLE001
            return f"{type(error).__name__}: {error}"
        if not far <= _FAR:
            return f"its numbers are {far:.2g} from those of float32 (window: {window})"
    return None


def difference(
    kernel: LayOut, device: torch.device, dtype: torch.dtype, heads: Heads, window: int | None
) -> float:
    """How far a kernel's results and gradients on a small input are from those of rectangles in float32: the
    largest difference, as a share of the largest number."""
    generator = torch.Generator().manual_seed(0)
    tokens = sum(_PROBE)
    drawn = [
        torch.randn(1, count, tokens, heads.size, generator=generator).to(dtype)
        for count in (heads.query, heads.shared, heads.shared)
    ]
    slope = torch.randn(1, tokens, heads.query, heads.size, generator=generator).to(dtype)

    def results(lay_out: LayOut, dtype: torch.dtype) -> list[Tensor]:
        inputs = [each.to(device, dtype, copy=True).requires_grad_() for each in drawn]
        module = torch.nn.Module()
        module.num_key_value_groups = heads.query // heads.shared  # type: ignore[assignment]
        query, key, value = inputs
        out = lay_out(_PROBE, device).attend(AttentionCall(module, query, key, value, None, window))
        gradients = torch.autograd.grad((out * slope.to(device, dtype)).sum(), inputs)
        return [out.detach(), *gradients]

    pairs = zip(results(kernel, dtype), results(Rectangles.of, torch.float32), strict=True)
    return max(float((one.float() - other).abs().max() / other.abs().max()) for one, other in pairs)
