"""A model with the adapter of a checkpoint added to its weights, tensor by tensor, as `SavedPolicy` gives a
whole model's.

Guarantees: sums are made in float32; one call's tensors are in memory at a time.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from rljob_api.adapter import Adapter
from rljob_runtime.trainer.adapter import saved_name
from rljob_runtime.trainer.checkpoint_tensors import SavedPolicy, TensorLayout
from rljob_runtime.weights.adapter import adapted_layers, layer_of
from rljob_runtime.weights.contents import tensor_shapes


class MergedPolicy:
    """See the module's guarantees."""

    def __init__(self, base: Path, adapter: Adapter, saved: SavedPolicy) -> None:
        """`base`: the folder of the model that the adapter is for; `saved`: a checkpoint's adapter. Raises
        `NoSuchLayers`, `FileNotFoundError`, `ValueError`."""
        shapes = tensor_shapes(base)
        self._files = {name: file for file in sorted(base.glob("*.safetensors")) for name in _names(file)}
        self._adapted = adapted_layers(shapes, adapter)
        self._scale = adapter.alpha / adapter.rank
        self._saved = saved
        self.layout = {
            name: TensorLayout(torch.Size(shape), _dtype(self._files[name], name))
            for name, shape in shapes.items()
        }
        """The layout of each tensor by its name in the folder, ascending."""

    def tensors(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The tensors of these names. Raises `CheckpointError`."""
        return {name: self._merged(name) for name in names}

    def _merged(self, name: str) -> Tensor:
        with safe_open(self._files[name], framework="pt") as file:
            weight: Tensor = file.get_tensor(name)
        layer = layer_of(name)
        if layer not in self._adapted:
            return weight
        first, second = saved_name(layer, "A"), saved_name(layer, "B")
        found = self._saved.tensors([first, second])
        return weight.float() + self._scale * (found[second].float() @ found[first].float())


def _names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as opened:
        return list(opened.keys())


def _dtype(file: Path, name: str) -> torch.dtype:
    with safe_open(file, framework="pt") as opened:
        # An empty part of it has its number format.
        part: Tensor = opened.get_slice(name)[:0]
        return part.dtype
