"""What the backward pass needs of the forward pass: kept on the device, in main memory, or computed again.

Guarantees: gradients are the same, whatever is kept; it concerns the decoder's layers alone.

| kept | memory for each token and layer | computed again |
|---|---|---|
| none | everything that a gradient needs | nothing |
| selective | results of matrix products and of attention | norms, rotations, activation functions |
| full | the layer's input | the whole layer |

Products that a layer writes over are computed again by `selective` too, but where layers are compiled: those
of grouped experts with biases, and all of a model that clips queries, keys and values.
"""

from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from rljob_api.model import ActivationCheckpointing

_Contexts: TypeAlias = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

_PRODUCTS = {"aten::mm", "aten::addmm"}
_GROUPED = {"aten::_grouped_mm", "transformers::grouped_mm_fallback"}
_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "torch_attn::_varlen_attn",
    "npu::npu_fusion_attention",
}
"""Operators with most of the arithmetic. By name, since torch knows some of them only once they are used."""


def checkpoint_activations(model: Any, what: ActivationCheckpointing, in_main_memory: bool = False) -> None:
    """Keep of the Hugging Face model's activations what `what` says; the layers' inputs `in_main_memory`,
    which needs "full". Raises `ValueError` for a model whose layers cannot be computed again."""
    if what == "none":
        return
    model.gradient_checkpointing_enable({"use_reentrant": False})
    function = partial(checkpoint, use_reentrant=False)
    if what == "selective":
        function = partial(function, context_fn=partial(_keeping, _kept(model)))
    for module in model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = _offloaded(function) if in_main_memory else function


def _offloaded(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which keeps its inputs alone, with these in main memory. The copies are made in the
    device's own order of work: the host waits for none."""
    # Memory is pinned for the device that is named.
    device = torch.accelerator.current_accelerator()
    kind = device.type if device is not None else "cuda"

    def call(*arguments: Any) -> Any:
        with save_on_cpu(pin_memory=True, device_type=kind):
            return function(*arguments)

    return call


def leave_to_compiler(layer: Any) -> bool:
    """Whether single results of the layer are kept; what is computed again is the compiler's to see to from
    now on. To be called after `checkpoint_activations`."""
    function = getattr(layer, "_gradient_checkpointing_func", None)
    if not isinstance(function, partial) or "context_fn" not in function.keywords:
        return False
    layer.gradient_checkpointing = False
    return True


KEPT: Set[str] = _PRODUCTS | _GROUPED | _ATTENTION
"""Operators whose results selective keeps, by torch's names, where nothing writes over them."""


def _kept(model: Any) -> Set[str]:
    """Operators whose results selective keeps: the model's layers leave them as they are. Of what is written
    over, the backward pass would take the new numbers for the old ones."""
    # As transformers marks experts with biases (its `use_experts_implementation`), and names clipping.
    biased = any(getattr(module, "has_bias", False) for module in model.modules())
    clipped = getattr(model.config.get_text_config(), "clip_qkv", None) is not None
    return _ATTENTION | (set() if biased else _GROUPED) | (set() if clipped else _PRODUCTS)


def _keeping(operators: Set[str]) -> _Contexts:
    def decide(context: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
        kept = operator.name() in operators
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts: _Contexts
    contexts = create_selective_checkpoint_contexts(decide)  # type: ignore[no-untyped-call]
    return contexts
