"""An adapter (LoRA) in the trainer's model: peft's layers around the chosen linear layers.

Guarantees: the adapter alone is trained, and begins as no change at all (B is 0); the same job gives the same
A, bit for bit; a model whose layers peft adapts otherwise than the engines do is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rljob_api.adapter import Adapter
from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.trainer.log_probs import Entropy, Scores
from rljob_runtime.trainer.packing import Packed
from rljob_runtime.trainer.policy import Policy
from rljob_runtime.trainer.sharding import whole
from rljob_runtime.weights.adapter import (
    adapted_layers,
    adapter_shapes,
    file_name,
    name_in_file,
    name_in_model,
)
from rljob_runtime.weights.contents import Shapes, tensor_shapes

_NAME = "default"
"""What peft calls the one adapter that a layer has here."""


def add_adapter(folder: Path, model: Any, adapter: Adapter, seed: int, weights: bool) -> None:
    """Put an adapter, in float32, into the Hugging Face model of `folder`, and freeze all else. Without
    `weights` it lies on the meta device, as the model does. Raises `UnsupportedModel`, `NoSuchLayers`."""
    from peft import LoraConfig, inject_adapter_in_model

    shapes = tensor_shapes(folder)
    layers = list(adapted_layers(shapes, adapter))
    config = LoraConfig(r=adapter.rank, lora_alpha=adapter.alpha, lora_dropout=0.0, target_modules=layers)
    # The process keeps its own random state. The adapter is made on the CPU, so no device has a part in it.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, _NAME, low_cpu_mem_usage=not weights)
    for parameter in model.parameters():
        if parameter.requires_grad:
            # Master weights: small updates would vanish in bfloat16.
            parameter.data = parameter.data.float()
    found = {name: tuple(tensor.shape) for name, tensor in model.named_parameters() if tensor.requires_grad}
    expected = adapter_shapes(shapes, adapter)
    wanted = {name_in_model(name, _NAME): shape for name, shape in expected.items()}
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise UnsupportedModel(
                f"{folder}: an adapter of {type(model).__name__} has {name} of shape {found.get(name)}, and "
                f"engines expect {wanted.get(name)}: name other layers in training.adapter.targetModules"
            )


def adapter_weights(policy: Policy, names: Shapes, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The adapter's tensors by their `names` in peft's file, whole, in `dtype`, on the device. All ranks must
    run through it together."""
    held = policy.model.state_dict()
    for name in names:
        yield name, whole(held[name_in_model(name, _NAME)]).detach().to(dtype, copy=True).contiguous()


def saved_name(layer: str, matrix: str) -> str:
    """What matrix "A" or "B" of a layer's adapter is called in the model, and so in checkpoints."""
    return name_in_model(file_name(layer, matrix), _NAME)


def exported_name(name: str) -> str:
    """What a tensor of a checkpoint is called in peft's file."""
    return name_in_file(name, _NAME)


class BaseModel:
    """The model without its adapter, of the policy's own weights: the reference of a job that trains an
    adapter."""

    def __init__(self, policy: Policy) -> None:
        from peft.tuners.tuners_utils import BaseTunerLayer

        self._policy = policy
        self._layers = [module for module in policy.modules() if isinstance(module, BaseTunerLayer)]

    def __call__(self, packed: Packed, entropy: Entropy) -> Scores:
        """What the policy's `forward` gives without the adapter."""
        with self._without_adapter():
            scores: Scores = self._policy(packed, entropy)
            return scores

    @contextmanager
    def _without_adapter(self) -> Iterator[None]:
        # Not by peft's `enable_adapters`, which also says what is trained: FSDP looks at that when it runs
        # for the first time, and would take the adapter for frozen ever after.
        for layer in self._layers:
            layer._disable_adapters = True
        try:
            yield
        finally:
            for layer in self._layers:
                layer._disable_adapters = False
