"""The tensors of a model under the names that they have in a Hugging Face folder.

In memory the experts of a layer are stacked, so that they can be multiplied as a group; in a folder, and for
engines, each of them has tensors of its own. What is one tensor on one side may be many on the other, and
their names may differ. transformers knows how, for every architecture that it has; this asks it, one tensor
at a time.
"""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.weights.contents import TIED_HEAD, Shapes, file_with, tensor_formats, tensor_shapes
from rljob_runtime.weights.model_files import check_part_of_model
from rljob_runtime.weights.stored_formats import quantized, refused_format

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


def check_names(folder: Path, model: Any) -> None:
    """Raise `UnsupportedModel` where the tensors of a folder are not those of the model that transformers
    loaded from it, as engines are sent the tensors of the folder, under their names there; or where their
    numbers are not weights."""
    theirs, formats = tensor_shapes(folder), tensor_formats(folder)
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    ours: Shapes = {}
    weights: set[str] = set()
    for name, value in model.state_dict().items():
        pieces = {name: value} if name in theirs else as_in_folder(model, name, value.to("meta"))
        ours |= {piece: tuple(each.shape) for piece, each in pieces.items()}
        if name in parameters:
            weights |= pieces.keys()
    if model.config.get_text_config().tie_word_embeddings:
        # Files may leave a tied head out; the model in memory has it, most by this name.
        theirs |= {name: shape for name, shape in ours.items() if name == TIED_HEAD}
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            if name in theirs and name not in ours:
                check_part_of_model(folder, file_with(folder, name))
            if (why := quantized(formats, name)) is not None:
                raise UnsupportedModel(f"{folder}: {why}")
            raise UnsupportedModel(
                f"{folder}: {name} is {_shape(theirs, name)} in the *.safetensors, and {_shape(ours, name)} "
                f"in {type(model).__name__} as it is trained: {_cure(name in theirs, name in ours)}"
            )
    if (why := refused_format(formats, weights)) is not None:
        raise UnsupportedModel(f"{folder}: {why}")


def _cure(in_folder: bool, in_model: bool) -> str:
    """What to do about a tensor that is in one of both alone, or in both with other shapes."""
    if not in_model:
        first = "load the model with AutoModelForCausalLM and save it anew with save_pretrained"
    elif not in_folder:
        first = "copy the whole model there, with its own config.json"
    else:
        first = "copy config.json and *.safetensors of one and the same model there"
    return f"{first}, or where that changes nothing give the folder of a model of another family"


def _shape(shapes: Shapes, name: str) -> str:
    return f"of shape {list(shapes[name])}" if name in shapes else "missing"
