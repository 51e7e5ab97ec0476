"""Layers of a model, compiled.

Guarantees: the model's weights keep their names, and what wraps layers (sharding, recomputation) stays
outside of what is compiled; layers that are alike share what is compiled, whatever their number.
"""

from contextlib import suppress
from typing import Any

import torch
from torch._dynamo.callback import callback_handler

from rljob_runtime.job_errors import UnsupportedModel


class Compilations:
    """How often torch has begun to compile something in this process since this was made: a layer that met
    sizes of a new kind, or the backward part of one, which is compiled when it is run first."""

    def __init__(self) -> None:
        self._begun = 0
        callback_handler.register_start_callback(self._begins)

    def __call__(self) -> int:
        return self._begun

    def close(self) -> None:
        """Count no more; a second call does nothing."""
        # torch raises where it is not there any more.
        with suppress(ValueError):
            callback_handler.remove_start_callback(self._begins)

    def _begins(self, *_: Any) -> None:
        self._begun += 1


def compile_layers(model: Any) -> None:
    """Let each layer of a Hugging Face model be compiled when it is called first. Raises `UnsupportedModel`
    where the model does not say which of its modules are layers."""
    kinds = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in kinds]
    if not layers:
        raise UnsupportedModel(
            f"{type(model).__name__} has no layers that can be compiled one by one: set "
            "training.compute.compile: false"
        )
    for layer in layers:
        # Open sizes from the first call on: micro-batches differ in tokens and in samples.
        layer.forward = torch.compile(layer.forward, dynamic=True)
