"""Bytes of each rank for a model of 1,000 parameters, against the table in docs/operations.md."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.manifest.trainer_memory import ModelSize, state_bytes
from tests.support.jobs import job

HELD = {"training.compute.holdWeights": True}
FOUR = {"accelerator": "nvidia", "pools.trainer.replicas": 4}
PAIRS = {"training.parallel": {"tensorParallel": 2, "contextParallel": {"hybrid": {}}}}


@pytest.mark.parametrize(
    ("changes", "kept", "on_device"),
    [
        ({}, 16_000, 16_000),
        ({"training.optimizer.stateFormat": "bfloat16"}, 12_000, 12_000),
        ({"training.algorithm.kl": {}}, 20_000, 20_000),
        ({"training.algorithm.kl": {}, "training.model.dtype": "bfloat16"}, 18_000, 18_000),
        (FOUR, 4_000, 4_000),
        ({**FOUR, "training.parallel.shardGroupSize": 2}, 8_000, 8_000),
        ({**FOUR, "training.parallel.shardGroupSize": 1}, 16_000, 16_000),
        ({**FOUR, "training.parallel.cpuOffload": True}, 4_000, 0),
        # Weights and moments of a quarter, and of all of them weights in 2 bytes and gradients in 4.
        (
            {
                **FOUR,
                "training.model.dtype": "bfloat16",
                "training.parallel.contextParallel": {"hybrid": {}},
            },
            4_000,
            3_000 + 6_000,
        ),
        (
            {
                **FOUR,
                "training.parallel.cpuOffload": True,
                "training.parallel.contextParallel": {"fixed": {"degree": 2}},
            },
            4_000,
            8_000,
        ),
        ({"training.parallel.contextParallel": {"hybrid": {}}}, 16_000, 16_000),
        ({**FOUR, "training.model.dtype": "bfloat16", **HELD}, 4_000, 3_000 + 6_000),
        ({"training.model.dtype": "bfloat16", **HELD}, 16_000, 12_000 + 6_000),
        (HELD, 16_000, 16_000),
        # Held of half of each layer: weights in 2 bytes and gradients in 4.
        (
            {**FOUR, "training.model.dtype": "bfloat16", **HELD, "training.parallel.tensorParallel": 2},
            4_000,
            3_000 + 3_000,
        ),
        # The same where two tensor groups share samples; one shares them with none.
        (
            {**FOUR, "training.model.dtype": "bfloat16", **PAIRS},
            4_000,
            3_000 + 3_000,
        ),
        (
            {"pools.trainer.replicas": 2, "accelerator": "nvidia", **PAIRS},
            8_000,
            8_000,
        ),
    ],
)
def test_bytes_of_a_rank(changes: dict[str, Any], kept: int, on_device: int) -> None:
    found = state_bytes(RLJob.model_validate(job(changes)), ModelSize(1_000))
    assert (found.kept, found.on_device) == (kept, on_device)


@pytest.mark.parametrize(
    ("changes", "bytes_"),
    [({}, 20_000), ({"training.model.dtype": "bfloat16"}, 10_000), (FOUR, 5_000)],
)
def test_a_teacher_takes_its_own_parameters(changes: dict[str, Any], bytes_: int) -> None:
    asked = RLJob.model_validate(job(changes))
    without, found = (state_bytes(asked, ModelSize(1_000, teacher=size)) for size in (0, 5_000))
    assert (without.teacher, found.teacher) == (0, bytes_)
    assert found.kept - without.kept == found.on_device - without.on_device == bytes_


@pytest.mark.parametrize(
    ("teacher", "on_device"),
    [
        # Kept: weights and moments, and the teacher in 2 bytes, of a quarter. Held: all weights in 2 bytes,
        # and gradients in 4.
        (2_000, 3_000 + 1_000 + 6_000),
        # Beside the weights all of a large teacher takes more than all gradients.
        (5_000, 3_000 + 2_500 + 2_000 + 10_000),
    ],
)
def test_a_large_teacher_is_held_beside_the_weights(teacher: int, on_device: int) -> None:
    asked = RLJob.model_validate(job({**FOUR, "training.model.dtype": "bfloat16", **HELD}))
    assert state_bytes(asked, ModelSize(1_000, teacher=teacher)).on_device == on_device


def test_one_rank_gathers_no_teacher() -> None:
    asked = RLJob.model_validate(job({"training.model.dtype": "bfloat16", **HELD}))
    assert state_bytes(asked, ModelSize(1_000, teacher=5_000)).held == 6_000
