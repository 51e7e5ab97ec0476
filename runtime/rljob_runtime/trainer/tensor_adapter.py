"""Adapters (LoRA) of layers that are split over the ranks of a tensor group.

To a layer's W x an adapter adds scale * B A x. The matrix on the side on which W is split is split with it:

| layer | a rank has | it computes | a part of the gradient of |
|---|---|---|---|
| by columns | A, and B of its outputs | its outputs, with A x as all ranks have it | A, from its outputs |
| by rows | A of its inputs, and B | a part of the layer's sum, B of its part of A x | B, from its inputs |

Guarantees: no sum of activations beside those of the layers themselves, forward and backward; a matrix that
is whole stays the same on all ranks of the group, as its gradient is summed over them.
"""

from functools import partial
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.functional import linear

from rljob_runtime.trainer.tensor_parameters import distribute, local
from rljob_runtime.trainer.tensor_sums import added


def split_adapter(layer: Any, mesh: DeviceMesh, by_rows: bool) -> None:
    """Let peft's layer, whose own one is split already, compute with the ranks of the group."""
    first, second = _matrices(layer)
    distribute(first, mesh, Shard(1) if by_rows else Replicate())
    distribute(second, mesh, Replicate() if by_rows else Shard(0))
    layer.forward = partial(_sum_of_all, layer, mesh) if by_rows else partial(_own_outputs, layer)


def _matrices(layer: Any) -> tuple[Any, Any]:
    """The modules that have A and B."""
    (name,) = layer.lora_A
    return layer.lora_A[name], layer.lora_B[name]


def _scale(layer: Any) -> float:
    (scale,) = layer.scaling.values()
    return float(scale)


def _own_outputs(layer: Any, hidden: DTensor) -> Tensor:
    """This rank's part of what the layer gives, for hidden states that all ranks have alike."""
    found: Tensor = layer.base_layer(hidden)
    if layer.disable_adapters:
        return found
    first, second = _matrices(layer)
    # Where it was marked as alike, the hidden states' gradient is summed, once with that of the layer itself.
    alike = hidden.to_local(grad_placements=[Partial()])
    low = linear(alike, local(first.weight, Partial()))
    return found + linear(low, local(second.weight, Shard(0))) * _scale(layer)


def _sum_of_all(layer: Any, mesh: DeviceMesh, own: Tensor) -> Tensor:
    """What the layer gives on all ranks, by this rank's part of its inputs."""
    base = layer.base_layer
    found = linear(own, local(base.weight, Shard(1)))
    if not layer.disable_adapters:
        first, second = _matrices(layer)
        low = linear(own, local(first.weight, Shard(1)))
        found = found + linear(low, local(second.weight, Partial())) * _scale(layer)
    found = added(found, mesh.get_group())
    return found if base.bias is None else found + local(base.bias)
