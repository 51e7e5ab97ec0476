"""A job's adapter against its model, before anything is loaded: the layers that it names, and the sizes of
all that the trainer holds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_api.model import RandomModel
from rljob_runtime.manifest.trainer_memory import ModelSize
from rljob_runtime.weights.adapter import NoSuchLayers, adapter_parameters
from rljob_runtime.weights.contents import Shapes, tensor_shapes
from rljob_runtime.weights.model_files import folder_parameters

_ADAPTER = ("spec", "training", "adapter")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Fields of config.json, of which a mixture of experts has one."""


def check_adapter(job: RLJob, folder: Path, config: dict[str, Any]) -> Iterator[Problem]:
    """What is wrong with the adapter of a job whose model is there. `folder` is the manifest's; `config` the
    model's config.json, empty for a random model."""
    adapter = job.spec.training.adapter
    if adapter is None:
        return
    if any(config.get(name) for name in _EXPERTS):
        yield Problem(
            _ADAPTER,
            f"adapter must not be set for a model with experts ({config['model_type']} in its config.json): "
            "leave it out to train all weights",
        )
        return
    try:
        adapter_parameters(_shapes(job, folder), adapter)
    except NoSuchLayers as error:
        yield Problem((*_ADAPTER, "targetModules"), str(error))


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
    """Shapes of the weights of a random model's linear layers, without experts, by name."""
    queries, shared = shape.attention_heads * shape.head_dim, shape.key_value_heads * shape.head_dim
    width, inner = shape.hidden_size, shape.intermediate_size
    one = {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (shared, width),
        "self_attn.v_proj": (shared, width),
        "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    return {
        f"model.layers.{layer}.{name}.weight": sizes
        for layer in range(shape.layers)
        for name, sizes in one.items()
    }
