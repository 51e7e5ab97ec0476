"""Layers of a model, compiled.

Guarantees: the model's weights keep their names, and what wraps layers (sharding, recomputation) stays
outside of what is compiled; layers that are alike share what is compiled, whatever their number.
"""

from typing import Any

import torch


def compile_layers(model: Any) -> int:
    """Compile each layer of a Hugging Face model, when it is called first; how many there are."""
    kinds = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in kinds]
    for layer in layers:
        # Open sizes from the first call on: micro-batches differ in tokens and in samples.
        layer.forward = torch.compile(layer.forward, dynamic=True)
    return len(layers)
