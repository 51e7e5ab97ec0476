"""What routers of experts add to their scores when they choose, as the trainer computes with it.

Guarantees: in float32, whatever the number format of the model, as engines have it (`weights.formats`); a
buffer of the model, which FSDP neither divides over ranks nor rounds for a forward pass.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from rljob_runtime.weights.contents import tensor_shapes
from rljob_runtime.weights.folder_names import sources
from rljob_runtime.weights.formats import is_correction


def keep_corrections(model: nn.Module) -> None:
    """Make buffers, in float32, of those parameters of a model that are corrections and are not trained. One
    without values becomes a buffer on the CPU: its values come from another rank."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not is_correction(name) or parameter.requires_grad:
                continue
            empty = torch.zeros(parameter.shape) if parameter.is_meta else parameter.detach().float()
            delattr(module, name)
            module.register_buffer(name, empty)


def read_corrections(folder: Path, model: Any) -> None:
    """Give a model that was loaded from `folder` the corrections as they are there: transformers rounds those
    of some architectures to the model's format."""
    shapes = tensor_shapes(folder)
    if not any(map(is_correction, shapes)):
        return
    held: dict[str, Tensor] = dict(model.named_buffers())
    held_by = sources(model, shapes)
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in filter(is_correction, opened.keys()):
                buffer = held.get(held_by.get(name, ""))
                if buffer is not None and buffer.shape == shapes[name]:
                    # With the buffer itself, whose format may be another one.
                    buffer.data = opened.get_tensor(name).float()
