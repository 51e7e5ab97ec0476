"""Adapters (LoRA) of layers that are split over the ranks of a tensor group.

To a layer's W x an adapter adds scale * B A x. The matrix on the side on which W is split is split with it:

| layer | a rank has | it computes | a part of the gradient of |
|---|---|---|---|
| by columns | A, and B of its outputs | its outputs, with A x as all ranks have it | A, from its outputs |
| by rows | A of its inputs, and B | a part of the layer's sum, B of its part of A x | B, from its inputs |

Guarantees: no sum of activations beside those of the layers themselves, forward and backward; a matrix that
is whole stays the same on all ranks of the group, as its gradient is summed over them.
"""

from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn.functional import linear

from rljob_runtime.trainer.tensor_parameters import Made, distribute
from rljob_runtime.trainer.tensor_sums import added


def split_adapter(layer: Any, mesh: DeviceMesh, by_rows: bool, made: Made) -> nn.Module:
    """Split the adapter of peft's layer, whose own one is split already. The module with the matrix of whose
    gradient each rank has a part."""
    first, second = _matrices(layer)
    distribute(first, mesh, Shard(1) if by_rows else Replicate(), made)
    distribute(second, mesh, Replicate() if by_rows else Shard(0), made)
    if by_rows:
        layer.tensor_group = mesh.get_group()
        layer.forward = MethodType(_sum_of_rows, layer)
    # By columns peft's own way serves: A x is the same on all ranks, and B has a part of the outputs.
    whole: nn.Module = second if by_rows else first
    return whole


def _matrices(layer: Any) -> tuple[Any, Any]:
    """The modules that have A and B."""
    (name,) = layer.lora_A
    return layer.lora_A[name], layer.lora_B[name]


def _scale(layer: Any) -> float:
    (scale,) = layer.scaling.values()
    return float(scale)


def _sum_of_rows(layer: Any, own: Tensor) -> Tensor:
    """What the layer gives on all ranks, by this rank's part of its inputs."""
    base = layer.base_layer
    found = linear(own, base.weight)
    if not layer.disable_adapters:
        first, second = _matrices(layer)
        found = found + second(first(own)) * _scale(layer)
    found = added(found, layer.tensor_group)
    return found if base.bias is None else found + base.bias
