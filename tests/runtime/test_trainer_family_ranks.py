"""Families with weights that are not trained, or that are kept in float32: steps, checkpoints and exports."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file

from rljob_runtime.driver.export import export, keep_model_files
from tests.runtime.test_model_export import LETTERS
from tests.support.runtime.families import IMAGES, family_model
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.trainer_ranks import groups, trainer_job, worker

RANKS = 2
JOB: dict[str, Any] = {"algorithm": {"kl": {"coefficient": 0.1}}, "policy": {"dtype": "bfloat16"}}
"""The reference is held in the engines' format, the policy in float32."""


class Family(NamedTuple):
    """A model, and what of it stays as it is."""

    kind: str
    fields: dict[str, Any]
    kept: str
    """In the names of those tensors alone that are not trained."""


FAMILIES = {
    "corrections that are parameters": Family("laguna", {}, "e_score_correction_bias"),
    "routers in float32": Family("ernie4_5_moe", {}, "moe_statics"),
    "corrections in float32": Family("deepseek_v3", {"num_key_value_heads": 4}, "e_score_correction_bias"),
    "images": Family("gemma3", IMAGES, "vision_tower|multi_modal_projector"),
}

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_it_trains_goes_on_exactly_and_is_exported(
    ranks: RankProcesses, tmp_path: Path, name: str, count: int
) -> None:
    kind, fields, kept = FAMILIES[name]
    initial, run = family_model(tmp_path / "initial", kind, **fields), tmp_path / "run"
    expected, losses = ranks.run(count, _train, initial, run)[0]
    assert ranks.run(count, _go_on, initial, run)[0] == losses
    described = trainer_job(**JOB).model_dump(by_alias=True, exclude_none=True)
    (run / "job.yaml").write_text(yaml.safe_dump(described))
    keep_model_files(initial, LETTERS, run)
    export(run, tmp_path / "exported")
    found = load_file(tmp_path / "exported" / "model.safetensors")
    before = load_file(initial / "model.safetensors")
    assert found.keys() == expected.keys() == before.keys()
    for each, weight in expected.items():
        np.testing.assert_array_equal(found[each].float().numpy(), weight, err_msg=each)
        as_before = np.array_equal(before[each].to(found[each].dtype).float().numpy(), weight)
        assert as_before == any(part in each for part in kept.split("|")), each


def _train(
    rank: int, world_size: int, store: Path, initial: Path, run: Path
) -> tuple[dict[str, Any], list[float]]:
    """Two steps and a checkpoint; the weights then, and the losses of two more steps."""
    with worker(trainer_job(**JOB), initial, rank, world_size, store) as trainer:
        _steps(trainer, rank, 0)
        trainer.save_checkpoint(run / "checkpoints", 2, b"")
        weights = {name: tensor.float().numpy().copy() for name, tensor in trainer.weights()}
        return weights, _steps(trainer, rank, 2)


def _go_on(rank: int, world_size: int, store: Path, initial: Path, run: Path) -> list[float]:
    with worker(trainer_job(**JOB), initial, rank, world_size, store) as trainer:
        trainer.load_checkpoint(run / "checkpoints" / "step_2")
        return _steps(trainer, rank, 2)


def _steps(trainer: Any, rank: int, first: int) -> list[float]:
    steps = range(first, first + 2)
    made = [groups(4, seed=step, version=step) if rank == 0 else None for step in steps]
    return [trainer.train_step(step, step, each).loss for step, each in zip(steps, made, strict=True)]
