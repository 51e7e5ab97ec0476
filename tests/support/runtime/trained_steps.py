"""Steps of a trainer on any number of ranks, and what comes of them, to be compared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.support.runtime.trainer_ranks import groups, stored_version, trainer_job, worker

Weights = dict[str, np.ndarray]
ALGORITHMS: dict[str, dict[str, Any]] = {
    "clip and kl": {"kl": {"coefficient": 0.1}, "entropyCoefficient": 0.01},
    "decoupled, sequence-mean": {
        "policyLoss": {"decoupledClip": {"level": "sequence"}},
        "aggregation": "sequence-mean",
    },
    "reinforce, fixed-length": {
        "policyLoss": {"truncatedReinforce": {}},
        "normalizeByStd": False,
        "aggregation": "fixed-length",
    },
}


def train(
    rank: int,
    world_size: int,
    store: Path | None,
    folder: Path,
    changes: dict[str, Any],
    steps: int = 2,
    rehearse: bool = False,
) -> tuple[list[StepMetrics], Weights]:
    """Train some steps of six groups, which rank 0 has; metrics, and on rank 0 the weights that engines would
    get."""
    job = trainer_job(**changes)
    device = {"device_index": rank if job.spec.accelerator == "nvidia" else 0}
    with worker(job, folder, rank, world_size, store, **device) as trainer:
        if rehearse:
            trainer._rehearse()
            assert all(each.grad is None for each in trainer._policy.parameters())
        return steps_of(trainer, steps)


def steps_of(trainer: Any, steps: int) -> tuple[list[StepMetrics], Weights]:
    """See `train`; of a rank that is set up."""
    metrics = [
        trainer.train_step(step, step, groups(6, seed=step, version=step) if trainer._rank == 0 else None)
        for step in range(steps)
    ]
    ref = stored_version(trainer, steps)
    weights = load_file(next(Path(ref.location).glob("*.safetensors"))) if ref is not None else {}
    return metrics, {name: value.float().numpy() for name, value in weights.items()}


def settings(algorithm: dict[str, Any], cap: int, **more: Any) -> dict[str, Any]:
    schedule = {"promptsPerBatch": 3, "batchesPerStep": 2}
    return {"algorithm": algorithm, "parallel": {"maxTokensPerMicroBatch": cap}, "schedule": schedule, **more}


def assert_same(left: tuple[list[StepMetrics], Weights], right: tuple[list[StepMetrics], Weights]) -> None:
    for one, other in zip(left[0], right[0], strict=True):
        for name in ("loss", "policy_loss", "kl", "entropy", "grad_norm", "clip_fraction", "parity_max"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4, abs=1e-5), name
        for name in ("tokens", "response_tokens", "samples", "failed", "reward_mean", "staleness_histogram"):
            assert getattr(one, name) == getattr(other, name), name
    assert left[1].keys() == right[1].keys()
    for name, value in left[1].items():
        np.testing.assert_allclose(value, right[1][name], atol=2e-5, err_msg=name)
