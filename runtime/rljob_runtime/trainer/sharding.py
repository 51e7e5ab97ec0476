"""A policy over several accelerators: FSDP2, master weights in float32, forward in the model's format.

Guarantees: gradients are summed over ranks, not averaged, since losses carry the weights of the whole batch;
one rank in float32 runs without any wrapping. With groups smaller than all ranks every group holds a copy of
the model's state: weights are gathered within a group, and gradients summed within it, then over groups. With
tensor groups each rank gathers, and sums over ranks with other samples, its part of every layer alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rljob_runtime.parallel.rank_layout import TENSOR, RankLayout
from rljob_runtime.trainer.initial_weights import broadcast_weights, use_formats_of_first
from rljob_runtime.trainer.policy import Policy
from rljob_runtime.trainer.tensor_parallel import on_meta, split
from rljob_runtime.weights.folder_names import as_in_folder, sources
from rljob_runtime.weights.formats import format_of


@dataclass(frozen=True)
class Sharding:
    """How the state of a model is spread over the ranks."""

    group: int | None = None
    """Ranks that hold one copy of it together, neighbours by number; None is all. It divides their number."""
    in_main_memory: bool = False
    """Whether weights, gradients and optimizer states lie there, and the device has them while it needs them
    alone."""
    tensor: int = 1
    """Ranks that compute every layer together, neighbours by number. It divides `group`."""


def shard(
    policy: Policy, device: torch.device, dtype: torch.dtype, sharding: Sharding | None = None
) -> Policy:
    """Move the policy to `device`, each rank of the process group holding its part; computes in `dtype`. The
    weights are rank 0's; other ranks' may lie on the meta device."""
    sharding = sharding or Sharding()
    alone = dist.get_world_size() == 1 and all(each.dtype == dtype for each in policy.parameters())
    if alone and not sharding.in_main_memory:
        return policy.to(device)
    # Gradients are summed in float32 at least.
    wide = torch.promote_types(dtype, torch.float32)
    layout = RankLayout(dist.get_rank(), dist.get_world_size(), sharding.tensor)
    grid = layout.mesh(sharding.group)
    mesh = init_device_mesh(device.type, grid.shape, mesh_dim_names=grid.names)
    options: dict[str, Any] = {
        "mesh": mesh if sharding.tensor == 1 else mesh[grid.of_state],
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wide),
    }
    if sharding.in_main_memory:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type != "cpu")
    if dist.get_world_size() > 1:
        use_formats_of_first(policy.model)
    all_weights = dict(policy.model.state_dict())
    if sharding.tensor > 1:
        # Its parts are cut from what rank 0 has, when all is sharded: the whole model is on no device.
        on_meta(policy.model)
        split(policy.model, mesh[TENSOR])
    # From the inside out: a module takes the parameters that no module within it has, brings them to the
    # device, and keeps its part of them.
    for module in _blocks(policy.model):
        fully_shard(module, **options)
    fully_shard(policy, **options)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            # gloo can only sum; a factor of 1 leaves the sum as it is.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    if dist.get_world_size() > 1:
        kept_on = torch.device("cpu") if sharding.in_main_memory else device
        broadcast_weights(policy, all_weights, device, kept_on)
    return policy


def whole_weights(
    policy: Policy, names: Mapping[str, Any], dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the model's folder named in `names`, in that order, whole, on the device, each in the
    number format that `weights.formats` has for it in a job of `dtype`.

    All ranks must run through it together. Of a tensor that holds several of the folder (stacked experts) all
    are made at once, and kept until they are due.
    """
    weights, job = policy.model.state_dict(), str(dtype).removeprefix("torch.")
    held_by = sources(policy.model, names)
    waiting: dict[str, Tensor] = {}
    for name in names:
        if name not in waiting:
            source = held_by[name]
            found = whole(weights[source])
            waiting |= {name: found} if source == name else as_in_folder(policy.model, source, found)
        weight = waiting.pop(name)
        form = getattr(torch, format_of(name, job)) if weight.is_floating_point() else weight.dtype
        # A copy: tied weights must not share memory where they are written under both names.
        yield name, weight.detach().to(form, copy=True, memory_format=torch.contiguous_format)


def whole(weight: Tensor) -> Tensor:
    """A weight of a sharded model, whole, on the device. All ranks together."""
    if not isinstance(weight, DTensor):
        return weight
    # It may lie in main memory, and is gathered faster on the device.
    there: Any = weight.to(weight.device_mesh.device_type)
    gathered: Tensor = there.full_tensor()
    return gathered


def _blocks(model: Any) -> list[torch.nn.Module]:
    """The decoder's layers: what is gathered at a time."""
    kinds = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in kinds]
