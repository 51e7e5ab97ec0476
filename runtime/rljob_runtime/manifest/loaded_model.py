"""Whether the trainer takes the weights of a folder, found by loading the model without their numbers.

transformers finds the place of each tensor in the model by its name; on torch's meta device no number of it
is read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.weights.folder_names import check_names
from rljob_runtime.weights.model_files import loading, without_progress_bars


def check_loading(folder: Path) -> Any:
    """The causal language model of a folder, on the meta device. Raises `UnsupportedModel` where its tensors
    are not those of the folder."""
    level = transformers.logging.get_verbosity()
    # What it says of tensors that do not fit is told in the error.
    transformers.logging.set_verbosity_error()
    try:
        with without_progress_bars(), loading(folder):
            # Sizes that differ are told by `check_names`, with what to do.
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, device_map="meta", ignore_mismatched_sizes=True
            )
    finally:
        transformers.logging.set_verbosity(level)
    check_names(folder, model)
    return model


def check_recomputing(model: Any, field: str) -> None:
    """Raise `UnsupportedModel` where the layers of a Hugging Face model cannot be computed again in the
    backward pass, which `field` of `training.model` asks for."""
    if not model.supports_gradient_checkpointing:
        raise UnsupportedModel(
            f"{field} needs layers that can be computed again, which {type(model).__name__} of transformers "
            f"{transformers.__version__} does not have: leave it out"
        )


def layers_to_compile(model: Any) -> list[nn.Module]:
    """The layers of a Hugging Face model, which are compiled one by one. Raises `UnsupportedModel` where the
    model does not say which of its modules are layers."""
    kinds = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in kinds]
    if not layers:
        raise UnsupportedModel(
            f"{type(model).__name__} has no layers that can be compiled one by one: set "
            "training.compute.compile: false"
        )
    return layers


def check_adapted(model: Any, layers: Mapping[str, tuple[int, int]]) -> None:
    """Raise `UnsupportedModel` where a Hugging Face model has not these linear layers in memory, as its
    folder has them: inputs and outputs of each, by name."""
    modules = dict(model.named_modules())
    for name, (inputs, outputs) in layers.items():
        found = modules.get(name)
        if isinstance(found, nn.Linear) and (found.in_features, found.out_features) == (inputs, outputs):
            continue
        what = "has another name" if found is None else f"is a {type(found).__name__}"
        raise UnsupportedModel(
            f"an adapter needs linear layers, and {name} of the *.safetensors {what} in "
            f"{type(model).__name__} of transformers {transformers.__version__}: name other layers in "
            "targetModules, or leave adapter out to train all weights"
        )
