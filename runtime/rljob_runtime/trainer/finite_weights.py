"""Whether the weights of a model that was loaded are numbers.

Guarantees: one look at each weight, where it lies, without memory beside it; all ranks come to the same
answer.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.trainer.tensor_parameters import local


@torch.no_grad()
def check_finite(model: Any, folder: Path) -> None:
    """Of a Hugging Face model that was read from `folder`, whole or this rank's part of it. All ranks
    together. Raises `UnsupportedModel`."""
    weights = {name: local(each) for name, each in model.state_dict().items() if each.is_floating_point()}
    found = [_largest(each) for each in weights.values()]
    # To one place, and then here at once: each read waits for the device.
    together = torch.stack([each.to(found[0].device) for each in found])
    broken = together.isfinite().logical_not().int().cpu()
    dist.all_reduce(broken, op=dist.ReduceOp.MAX)
    names = [name for name, each in zip(weights, broken.tolist(), strict=True) if each]
    if names:
        others = f", as have {len(names) - 1} other weights" if len(names) > 1 else ""
        raise UnsupportedModel(
            f"{folder}: {names[0]} has NaN or infinite numbers{others}: copy the model's files again, or "
            "take another model"
        )


def _largest(weight: Tensor) -> Tensor:
    """The largest size of its numbers; NaN where any is."""
    if weight.numel() == 0:
        # A rank may have no part of a small one.
        return weight.new_zeros((), dtype=torch.float32)
    largest: Tensor = torch.linalg.vector_norm(weight, ord=float("inf"))
    return largest.float()
