"""An adapter (LoRA) in peft's form: which layers it is for, its tensors by name and shape, its two files.

Guarantees: names and shapes follow from the model's own tensors alone, so that trainer, engines, checks and
exports agree on them without a model in memory; a target that names no layer is refused, never left out.
"""

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api.adapter import Adapter
from rljob_api.errors import nearest
from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.weights.contents import Shapes, tensor_shapes
from rljob_runtime.weights.write import write_weights

if TYPE_CHECKING:
    from torch import Tensor

TENSORS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
"""Of the names of an adapter's tensors: peft's model is around the model."""
_LAYERS = ".layers."
"""In the names of what the decoder's layers have."""
_WEIGHT = ".weight"
_EXPERTS = ".experts."
"""In the names of what a layer's experts have, and not in those of shared experts."""
_WIDEST = 4
"""Bytes of a number in the widest format, float32."""


class NoSuchLayers(UnsupportedModel):
    """The adapter is for layers that the model does not have; the message says which it has."""


def adapted_layers(model: Shapes, adapter: Adapter) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each linear layer that gets an adapter, by name, ascending. `model` are the
    tensors in the model's folder. Raises `NoSuchLayers`."""
    linear = dict(_linear(model))
    if adapter.target_modules is None:
        if not linear:
            raise NoSuchLayers("the model has no linear layers that could get an adapter")
        return linear
    wrong = [
        each for each in dict.fromkeys(adapter.target_modules) if not any(_is(name, each) for name in linear)
    ]
    if wrong:
        known = sorted({_kind(name) for name in linear})
        of_experts = [each for each in wrong if any(f".{each}." in f".{name}." for name in _routed(model))]
        raise NoSuchLayers(_of_experts(of_experts, known) if of_experts else _without(wrong, known))
    return {
        name: size for name, size in linear.items() if any(_is(name, each) for each in adapter.target_modules)
    }


def _without(wrong: list[str], known: list[str]) -> str:
    """That the model has none of the layers in `wrong`, which of the `known` are probably meant, and all of
    these."""
    meant = {each: near for each in wrong if (near := nearest(each, known)) is not None}
    # Which of several is meant by which cannot be told from its place.
    hints = [f'"{near}"' if len(wrong) == 1 else f'"{near}" for "{each}"' for each, near in meant.items()]
    hint = f"did you mean {', '.join(hints)}? It" if hints else "it"
    layers = "layer" if len(wrong) == 1 else "layers"
    named = ", ".join(f'"{each}"' for each in wrong)
    return f"the model has no linear {layers} {named}: {hint} has {', '.join(known)}"


def _of_experts(wrong: list[str], known: list[str]) -> str:
    """That the layers in `wrong` get no adapter, and which do."""
    named = ", ".join(f'"{each}"' for each in wrong)
    return (
        f"{named}: experts, what chooses among them, and layers that have the name of one of theirs get no "
        f"adapter; take some of {', '.join(known)}, or leave targetModules out for all of these"
    )


def has_experts(model: Shapes) -> bool:
    """Whether names of the model's tensors tell which are its experts'."""
    return any(_EXPERTS in name for name in model)


def target_names(model: Shapes, adapter: Adapter) -> list[str]:
    """The last parts of the names of the layers that get an adapter, ascending. Raises `NoSuchLayers`."""
    return sorted({_kind(name) for name in adapted_layers(model, adapter)})


def adapter_shapes(model: Shapes, adapter: Adapter) -> Shapes:
    """Shape of each tensor of the adapter, by its name in peft's file, ascending. Raises `NoSuchLayers`."""
    shapes: Shapes = {}
    for name, (inputs, outputs) in adapted_layers(model, adapter).items():
        shapes[file_name(name, "A")] = (adapter.rank, inputs)
        shapes[file_name(name, "B")] = (outputs, adapter.rank)
    return dict(sorted(shapes.items()))


def adapter_parameters(model: Shapes, adapter: Adapter) -> int:
    """Numbers that are trained. Raises `NoSuchLayers`."""
    return sum(prod(shape) for shape in adapter_shapes(model, adapter).values())


def version_bytes(model_folder: Path, adapter: Adapter | None) -> int:
    """What a published version takes at most: the model's weights, or an adapter of them. Raises
    `NoSuchLayers`."""
    if adapter is None:
        return sum(path.stat().st_size for path in model_folder.glob("*.safetensors"))
    return _WIDEST * adapter_parameters(tensor_shapes(model_folder), adapter)


def file_name(layer: str, matrix: str) -> str:
    """What matrix "A" or "B" of a layer's adapter is called in peft's file."""
    return f"{_PREFIX}{layer}.lora_{matrix}{_WEIGHT}"


def layer_of(weight: str) -> str:
    """The layer that a tensor of the model's folder is the weight of, if it is one's."""
    return weight.removesuffix(_WEIGHT)


def name_in_model(name: str, adapter: str) -> str:
    """What a tensor of peft's file is called in a model, where adapters have names."""
    return f"{name.removeprefix(_PREFIX).removesuffix(_WEIGHT)}.{adapter}{_WEIGHT}"


def name_in_file(name: str, adapter: str) -> str:
    """The reverse of `name_in_model`."""
    return f"{_PREFIX}{name.removesuffix(f'.{adapter}{_WEIGHT}')}{_WEIGHT}"


def config(model: Shapes, adapter: Adapter, base: str) -> dict[str, Any]:
    """The content of `CONFIG`; `base` is the folder of the model that the adapter is for."""
    targets = adapter.target_modules
    if targets is None:
        targets = target_names(model, adapter)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "target_modules": targets,
        "bias": "none",
        "inference_mode": True,
    }


def write(folder: Path, tensors: "Mapping[str, Tensor]", config: Mapping[str, Any]) -> None:
    """Write both files to a folder. Raises `OSError`."""
    write_weights(tensors, folder / TENSORS)
    write_config(folder, config)


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write `CONFIG` alone. Raises `OSError`."""
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def _linear(model: Shapes) -> Iterator[tuple[str, tuple[int, int]]]:
    """The linear layers of the decoder: their weights alone are matrices. A weight has shape (outputs,
    inputs). None whose name experts' layers have too: peft takes that name for theirs."""
    of_experts = {_kind(layer) for layer in _routed(model)}
    for name, shape in sorted(model.items()):
        layer = layer_of(name)
        if name.endswith(_WEIGHT) and len(shape) == 2 and _LAYERS in name and _kind(layer) not in of_experts:
            yield layer, (shape[1], shape[0])


def _routed(model: Shapes) -> set[str]:
    """What belongs to experts, and what chooses among them: it lies beside them."""
    blocks = {name.partition(_EXPERTS)[0] for name in model if _EXPERTS in name}
    layers = {layer_of(name) for name in model}
    return {each for each in layers if _EXPERTS in each or each.rpartition(".")[0] in blocks}


def _kind(layer: str) -> str:
    """The last part of a layer's name, which layers have in all blocks."""
    return layer.rpartition(".")[2]


def _is(layer: str, target: str) -> bool:
    """Whether a target stands for a layer, as peft reads it."""
    return layer == target or layer.endswith(f".{target}")
