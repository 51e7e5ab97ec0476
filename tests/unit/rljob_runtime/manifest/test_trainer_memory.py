"""Bytes of each rank for a model of 1,000 parameters, against the table in docs/operations.md."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.manifest.trainer_memory import ModelSize, state_bytes
from tests.support.jobs import job

HELD = {"training.compute.holdWeights": True}
FOUR = {"accelerator": "nvidia", "pools.trainer.replicas": 4}


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
    ],
)
def test_bytes_of_a_rank(changes: dict[str, Any], kept: int, on_device: int) -> None:
    found = state_bytes(RLJob.model_validate(job(changes)), ModelSize(1_000))
    assert (found.kept, found.on_device) == (kept, on_device)
