"""A job's adapter against its model, before anything is loaded: the layers that it names, the rank that they
can use, and the sizes of all that the trainer holds."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_api.model import RandomModel
from rljob_runtime.manifest.trainer_memory import ModelSize
from rljob_runtime.parallel.rank_layout import experts_of
from rljob_runtime.weights.adapter import NoSuchLayers, adapted_layers, adapter_parameters, has_experts
from rljob_runtime.weights.contents import Shapes, tensor_shapes
from rljob_runtime.weights.model_files import folder_parameters

_ADAPTER = ("spec", "training", "adapter")
_LIMIT = "the change of a layer has no higher rank than it has inputs or outputs, whichever are fewer"


def check_adapter(job: RLJob, folder: Path, config: dict[str, Any]) -> Iterator[Problem]:
    """What is wrong with the adapter of a job whose model is there. `folder` is the manifest's; `config` the
    model's config.json, empty for a random model."""
    adapter = job.spec.training.adapter
    if adapter is None:
        return
    try:
        shapes = _shapes(job, folder)
        if experts_of(config) and not has_experts(shapes):
            yield Problem(
                _ADAPTER,
                f"which tensors of {config['model_type']} (config.json) are its experts', which get no "
                "adapter, cannot be told by their names: leave adapter out to train all weights",
            )
            return
        adapter_parameters(shapes, adapter)
    except NoSuchLayers as error:
        yield Problem((*_ADAPTER, "targetModules"), str(error))


def doubtful_rank(job: RLJob, folder: Path) -> Iterator[Problem]:
    """Whether some layer of the job's model, which `check_adapter` has found right, can use no adapter of so
    high a rank. It would be trained all the same, as if its rank were lower."""
    adapter = job.spec.training.adapter
    if adapter is None:
        return
    why = _unused(adapted_layers(_shapes(job, folder), adapter), adapter.rank)
    if why is not None:
        yield Problem((*_ADAPTER, "rank"), why)


def _unused(layers: Mapping[str, tuple[int, int]], rank: int) -> str | None:
    """What of a rank is of no use; None where all `layers`, inputs and outputs by name, can use it."""
    narrow = [name for name, size in layers.items() if min(size) < rank]
    if not narrow:
        return None
    # Of equals the first.
    least, most = (choose(layers, key=lambda name: min(layers[name])) for choose in (min, max))
    lowest, highest = min(layers[least]), min(layers[most])
    if len(narrow) == len(layers):
        return (
            f"is {rank}, above what any of the layers can use: {_LIMIT}, {highest} at most here "
            f"({_sized(most, layers)}). Take {highest} or less"
        )
    kinds = ", ".join(sorted({name.rpartition(".")[2] for name in narrow}))
    return (
        f"is {rank}, above what {kinds} can use: {_LIMIT}, {lowest} in {_sized(least, layers)}. What is "
        f"trained beyond that changes nothing there; up to {highest} is of use in other layers "
        f"({_sized(most, layers)}). Take {lowest} or less, or leave {kinds} out of targetModules"
    )


def _sized(name: str, layers: Mapping[str, tuple[int, int]]) -> str:
    inputs, outputs = layers[name]
    return f"{name}: {inputs} inputs, {outputs} outputs"


def model_size(job: RLJob, folder: Path, parameters: int) -> ModelSize:
    """Size of a model of so many parameters, with the job's adapter and the teacher that its trainer scores.
    Raises `NoSuchLayers`, `ModelFolderError`."""
    adapter, teacher = job.spec.training.adapter, job.spec.training.algorithm.teacher_folder
    return ModelSize(
        parameters,
        None if adapter is None else adapter_parameters(_shapes(job, folder), adapter),
        0 if teacher is None else folder_parameters(folder / teacher),
    )


def _shapes(job: RLJob, folder: Path) -> Shapes:
    model = job.spec.training.model
    if model.random is not None:
        return random_layers(model.random)
    return tensor_shapes(folder / str(model.path))


def random_layers(shape: RandomModel) -> Shapes:
    """Shapes of the weights of a random model's linear layers, by name."""
    queries, shared = shape.attention_heads * shape.head_dim, shape.key_value_heads * shape.head_dim
    width = shape.hidden_size
    one: Shapes = {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (shared, width),
        "self_attn.v_proj": (shared, width),
        "self_attn.o_proj": (width, queries),
    }
    if shape.experts is None:
        one |= _gated("mlp", shape.intermediate_size, width)
    else:
        one["mlp.gate"] = (shape.experts.count, width)
        for number in range(shape.experts.count):
            one |= _gated(f"mlp.experts.{number}", shape.experts.intermediate_size, width)
    return {
        f"model.layers.{layer}.{name}.weight": sizes
        for layer in range(shape.layers)
        for name, sizes in one.items()
    }


def _gated(name: str, inner: int, width: int) -> Shapes:
    """Of a feed-forward network, or of one expert."""
    return {
        f"{name}.gate_proj": (inner, width),
        f"{name}.up_proj": (inner, width),
        f"{name}.down_proj": (width, inner),
    }
