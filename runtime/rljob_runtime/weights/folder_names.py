"""The tensors of a model under the names that they have in a Hugging Face folder.

In memory the experts of a layer are stacked, so that they can be multiplied as a group; in a folder, and for
engines, each of them has tensors of its own. What is one tensor on one side may be many on the other, and
their names may differ. transformers knows how, for every architecture that it has; this asks it, one tensor
at a time.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def as_in_folder(model: Any, name: str, tensor: "Tensor") -> "dict[str, Tensor]":
    """What stands in a folder for a tensor of the model, by its names there. Pieces may be views of it."""
    from transformers.core_model_loading import revert_weight_conversion

    found: dict[str, Tensor] = revert_weight_conversion(model, {name: tensor})
    return found


def sources(model: Any, in_folder: Collection[str]) -> dict[str, str]:
    """For each name of a tensor in the model's folder, the name of the model's tensor that holds it.
    `in_folder` are the names there."""
    found = {}
    for name, tensor in model.state_dict().items():
        if name in in_folder:
            found[name] = name
        else:
            # On the meta device, so that nothing is computed.
            found |= dict.fromkeys(
                as_in_folder(model, name, tensor.new_empty(tensor.shape, device="meta")), name
            )
    return found
