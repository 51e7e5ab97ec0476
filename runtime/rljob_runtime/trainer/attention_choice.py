"""Which attention a model gets on a device.

Guarantees: a kernel is taken only after it has given, on this device and with this model's heads, what plain
attention in float32 gives, forward and backward, in each form in which it will be called; where it has not,
the reason is told.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from rljob_runtime.trainer.attention import LayOut
from rljob_runtime.trainer.attention_call import AttentionCall
from rljob_runtime.trainer.rectangles import Rectangles
from rljob_runtime.trainer.segments import Kernel, Segments
from rljob_runtime.trainer.varlen import AscendVarlen, Varlen
from rljob_runtime.weights.attention_kind import cap_of, sinks_of

_PROBE = (5, 70, 1, 33)
"""Lengths of the samples that a kernel is tried with."""
_PROBE_KEYS = (9, 70, 6, 132)
"""Keys that these many queries see where ranks share samples: at least as many."""
_FAR = 0.05
"""A kernel's numbers may be so far from float32's, of the largest of them."""


@dataclass(frozen=True)
class AttentionChoice:
    """What a model's attention is computed with."""

    name: Kernel
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
    value: int | None = None
    """Size of a value; None: that of a key, which is `size`."""
    capped: bool = False
    """Whether layers have a cap of scores."""
    sunk: bool = False
    """Whether they have sinks."""

    @classmethod
    def of(cls, model: Any) -> "Heads":
        """Of a Hugging Face model."""
        config = model.config.get_text_config()
        query = config.num_attention_heads
        window = getattr(config, "sliding_window", None)
        # With latent attention `head_dim` is the rotated part of a query alone.
        size = getattr(config, "qk_head_dim", None) or getattr(config, "head_dim", None)
        return cls(
            query,
            getattr(config, "num_key_value_heads", None) or query,
            size or config.hidden_size // query,
            () if window is None else (window,),
            getattr(config, "v_head_dim", None),
            cap_of(model) is not None,
            sinks_of(model) is not None,
        )

    def part(self, tensor: int) -> "Heads":
        """What each of `tensor` ranks has of them, which have equal parts."""
        return replace(self, query=self.query // tensor, shared=self.shared // tensor)


def choose_attention(
    device: torch.device,
    dtype: torch.dtype,
    heads: Heads,
    wanted: Literal["auto", "rectangles"] = "auto",
    shared: bool = False,
) -> AttentionChoice:
    """The fastest attention that serves; with `wanted` rectangles those, whatever the device has. `shared`:
    whether ranks share samples, so that a rank has fewer queries than it has keys."""
    name, kernel = _kernel_of(device)
    if wanted == "rectangles":
        return AttentionChoice("rectangles", "they are asked for", Rectangles.of)
    if kernel is None:
        return AttentionChoice("rectangles", f"a {device.type} has no other", Rectangles.of)
    if dtype not in (torch.bfloat16, torch.float16):
        return AttentionChoice("rectangles", f"kernels of {device.type} do not take {dtype}", Rectangles.of)
    if heads.capped or (heads.sunk and name != "varlen"):
        why = f"kernels of {device.type} have no {'caps of scores' if heads.capped else 'sinks'}"
        return AttentionChoice("rectangles", why, Rectangles.of)
    if heads.sunk and kernel == Varlen.of:
        kernel = Varlen.with_sinks
    forms = {"": packed_form(kernel)}
    if shared:
        forms[" with fewer queries than keys"] = shared_form(name)
    for words, form in forms.items():
        fault = _fault(form, device, dtype, heads)
        if fault is not None:
            why = f"the kernel of {device.type} does not serve{words}: {fault}"
            return AttentionChoice("rectangles", why, Rectangles.of)
    return AttentionChoice(name, "it gives what plain attention gives", kernel)


def _kernel_of(device: torch.device) -> tuple[Kernel, LayOut | None]:
    if device.type == "cuda":
        return "varlen", Varlen.of
    return ("ascend", AscendVarlen.of) if device.type == "npu" else ("rectangles", None)


@dataclass(frozen=True)
class Form:
    """A form in which attention is called."""

    keys: tuple[int, ...]
    """Of each sample of the probe, whose queries are `_PROBE`."""
    attend: Callable[[AttentionCall], Tensor]
    exact: Callable[[AttentionCall], Tensor]
    """What `attend` is to give, if it is called in float32."""


def packed_form(kernel: LayOut) -> Form:
    """Samples one after the other, all of their tokens on one rank."""

    def form(lay_out: LayOut) -> Callable[[AttentionCall], Tensor]:
        return lambda call: lay_out(_PROBE, call.query.device).attend(call)

    return Form(_PROBE, form(kernel), form(Rectangles.of))


def shared_form(kernel: Kernel) -> Form:
    """The last queries of each sample, and all keys and values, as `GatheredKeys` calls a kernel."""

    def form(kernel: Kernel) -> Callable[[AttentionCall], Tensor]:
        def attend(call: AttentionCall) -> Tensor:
            segments = Segments.of(_PROBE, _PROBE_KEYS, call.query.device, kernel)
            query, key, value = (each[0].transpose(0, 1) for each in (call.query, call.key, call.value))
            # Parts of one tensor, as they are when they were gathered in one call.
            both = torch.cat([key, value], dim=-1)
            keys, values = torch.split(both, [key.shape[-1], value.shape[-1]], dim=-1)
            return segments.attend(query, keys, values, call.scaling, call.window, call.cap, call.sinks)[None]

        return attend

    return Form(_PROBE_KEYS, form(kernel), form("rectangles"))


def _fault(form: Form, device: torch.device, dtype: torch.dtype, heads: Heads) -> str | None:
    """What is wrong with a kernel; None where nothing is."""
    for window in (None, *(min(each, 16) for each in heads.windows)):
        try:
            far = difference(form, device, dtype, heads, window)
        # Whatever a kernel raises that does not know the device, the heads or the window, there is another.
        except Exception as error:  # noqa: BLE001
            return f"{type(error).__name__}: {error}"
        if not far <= _FAR:
            return f"its numbers are {far:.2g} from those of float32 (window: {window})"
    return None


def difference(
    form: Form, device: torch.device, dtype: torch.dtype, heads: Heads, window: int | None
) -> float:
    """How far a kernel's results and gradients on a small input are from exact ones: the largest difference,
    as a share of the largest number; NaN where any of them is."""
    generator = torch.Generator().manual_seed(0)
    queries, keys, value = sum(_PROBE), sum(form.keys), heads.value or heads.size
    shapes = (
        (heads.query, queries, heads.size), (heads.shared, keys, heads.size), (heads.shared, keys, value)
    )  # fmt: skip
    drawn = [torch.randn(1, *shape, generator=generator).to(dtype) for shape in shapes]
    if heads.sunk:
        drawn.append(torch.randn(heads.query, generator=generator).to(dtype))
    slope = torch.randn(1, queries, heads.query, value, generator=generator).to(dtype)

    def results(attend: Callable[[AttentionCall], Tensor], dtype: torch.dtype) -> list[Tensor]:
        inputs = [each.to(device, dtype, copy=True).requires_grad_() for each in drawn]
        module = torch.nn.Module()
        module.num_key_value_groups = heads.query // heads.shared  # type: ignore[assignment]
        query, key, value, *sinks = inputs
        out = attend(AttentionCall(module, query, key, value, None, window, None, *sinks))
        gradients = torch.autograd.grad((out * slope.to(device, dtype)).sum(), inputs)
        return [out.detach(), *gradients]

    pairs = zip(results(form.attend, dtype), results(form.exact, torch.float32), strict=True)
    # By torch: Python's max passes over what is no number.
    return float(
        torch.stack([(one.float() - other).abs().max() / other.abs().max() for one, other in pairs]).max()
    )
