"""One rank's weights to all ranks, which hold a part each.

Guarantees: rank 0 alone has the whole model in main memory; a device has, beside its part, one tensor at a
time.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from rljob_runtime.trainer.policy import Policy

_CONVERSIONS = "_weight_conversions"
"""Where transformers keeps, at a model that it loaded, how names in the folder differ from the model's."""


def use_formats_of_first(model: Any) -> None:
    """Give every tensor of a Hugging Face model the number format that it has on rank 0, which read the
    weights: transformers leaves some in float32, whatever it is asked for. All ranks together."""
    # With the parameters themselves: a copy's format would change nothing.
    held: dict[str, Tensor] = model.state_dict(keep_vars=True)
    formats = [{name: tensor.dtype for name, tensor in held.items()}]
    dist.broadcast_object_list(formats, 0)
    for name, tensor in held.items():
        tensor.data = tensor.data.to(formats[0][name])


@torch.no_grad()
def broadcast_weights(
    policy: Policy, whole: Mapping[str, Tensor], device: torch.device, kept_on: torch.device
) -> None:
    """Give every rank its part of `whole`: rank 0's tensors of the Hugging Face model, by name, from before
    it was sharded. What is on the meta device comes to lie on `kept_on`. All ranks together."""
    made: Any = policy
    made._apply(lambda tensor: torch.empty_like(tensor, device=kept_on) if tensor.is_meta else tensor)
    model: Any = policy.model
    first = dist.get_rank() == 0
    for name, own in model.state_dict().items():
        if first:
            # A broadcast sends memory as it lies there.
            sent = whole[name].to(device).contiguous()
        else:
            sent = torch.empty(own.shape, dtype=own.dtype, device=device)
        dist.broadcast(sent, 0)
        if isinstance(own, DTensor):
            # Every rank has all of it, and takes its part by itself.
            part = distribute_tensor(sent, own.device_mesh, own.placements, src_data_rank=None)
            own.to_local().copy_(part.to_local())
        else:
            own.copy_(sent)
    conversions = [getattr(model, _CONVERSIONS, None)]
    dist.broadcast_object_list(conversions, 0)
    setattr(model, _CONVERSIONS, conversions[0])
