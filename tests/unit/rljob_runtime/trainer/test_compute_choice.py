"""What the trainer does where `training.compute` is silent."""

from types import SimpleNamespace
from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.manifest.trainer_memory import ModelSize
from rljob_runtime.trainer.compute_choice import compiler, compiles, holds_weights
from tests.support.jobs import job

NVIDIA = {"accelerator": "nvidia", "training.rollout.engine": {"vllm": {}}}
GIB = 2**30


def model(layers: bool = True, **config: int) -> Any:
    text = SimpleNamespace(to_dict=lambda: config)
    return SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda: text), _no_split_modules=["Layer"] if layers else None
    )


COMPILED: dict[str, tuple[dict[str, Any], Any, str | None, bool, str]] = {
    # what: (of the RLJob, the model, the C compiler, whether compiled, why)
    "a GPU": (NVIDIA, model(), "gcc", True, "with gcc"),
    "no compiler": (NVIDIA, model(), None, False, "no C compiler"),
    "asked for without a compiler": (
        NVIDIA | {"training.compute.compile": True}, model(), None, True, "compute.compile says so"
    ),
    "not wanted": (
        NVIDIA | {"training.compute.compile": False}, model(), "gcc", False, "compute.compile says so"
    ),
    "CPUs": ({}, model(), "gcc", False, "accelerator is cpu"),
    "asked for on CPUs": ({"training.compute.compile": True}, model(), "gcc", True, "says so"),
    "experts": (NVIDIA, model(num_experts=8), "gcc", False, "the model has experts"),
    "experts by another name": (NVIDIA, model(num_local_experts=8), "gcc", False, "has experts"),
    "experts by a third name": (NVIDIA, model(moe_num_experts=8), "gcc", False, "has experts"),
    "an adapter": (
        NVIDIA | {"training.adapter": {}, "training.model.dtype": "bfloat16"},
        model(), "gcc", False, "an adapter is trained",
    ),
    "unknown layers": (NVIDIA, model(layers=False), "gcc", False, "which of its modules are layers"),
    "shared samples": (
        NVIDIA | {"training.parallel.contextParallel": {"hybrid": {}}, "pools.trainer.replicas": 2},
        model(), "gcc", True, "with gcc",
    ),
    "tensor groups": (
        NVIDIA | {"training.parallel.tensorParallel": 2, "pools.trainer.acceleratorsPerWorker": 2},
        model(), "gcc", False, "tensorParallel is above 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COMPILED)
def test_layers_are_compiled_where_it_pays(case: str) -> None:
    changes, given, found, on, why = COMPILED[case]
    choice = compiles(RLJob.model_validate(job(changes)), given, found)
    assert (choice.on, why in choice.why) == (on, True), choice


@pytest.mark.parametrize(
    ("changes", "parameters", "held"),
    [
        # 6 bytes of each parameter: bfloat16 weights, float32 gradients.
        (NVIDIA | {"training.model.dtype": "bfloat16"}, 1.3e9, True),
        (NVIDIA | {"training.model.dtype": "bfloat16"}, 1.5e9, False),
        (NVIDIA | {"training.model.dtype": "bfloat16", "training.compute.holdWeights": True}, 8e9, True),
        (NVIDIA | {"training.model.dtype": "bfloat16", "training.compute.holdWeights": False}, 1e6, False),
        ({"training.model.dtype": "bfloat16"}, 1e6, False),
    ],
)
def test_weights_are_held_where_they_are_small(
    changes: dict[str, Any], parameters: float, held: bool
) -> None:
    assert holds_weights(RLJob.model_validate(job(changes)), ModelSize(int(parameters)), 80 * GIB) is held


def test_weights_are_not_held_beside_a_large_teacher() -> None:
    asked = RLJob.model_validate(
        job(NVIDIA | {"training.model.dtype": "bfloat16", "pools.trainer.replicas": 2})
    )
    found = [holds_weights(asked, ModelSize(10**9, teacher=size), 80 * GIB) for size in (10**9, 5 * 10**9)]
    assert found == [True, False]


def test_the_compiler_is_the_one_that_the_environment_names() -> None:
    assert compiler({"CC": "/opt/cc"}) == "/opt/cc"
