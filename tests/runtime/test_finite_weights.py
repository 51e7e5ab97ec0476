"""Models whose files hold weights that are no numbers: told when they are loaded, and of which file."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rljob_runtime.job_errors import UnsupportedModel
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.trainer_ranks import model_folder, trainer_job, with_ranks, worker

pytestmark = pytest.mark.timeout(300)

TAUGHT = {"distillation": {"teacher": {"path": "teacher"}}}
WEIGHT = "model.layers.1.mlp.up_proj.weight"


def damaged(folder: Path, names: dict[str, float]) -> Path:
    """The folder with one number of each of these weights in the place of another."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name, number in names.items():
        weights[name].view(-1)[-1] = number
    save_file(weights, file, {"format": "pt"})
    return folder


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_no_number_is_named_before_the_first_step(tmp_path: Path, number: float) -> None:
    job = trainer_job()
    folder = damaged(model_folder(job, tmp_path / "model"), {WEIGHT: number})
    told = rf"^{folder}: {WEIGHT} has NaN or infinite numbers: copy the model's files again"
    with pytest.raises(UnsupportedModel, match=told), worker(job, folder):
        pass


def test_of_several_the_first_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    job = trainer_job()
    names = {
        WEIGHT: torch.inf,
        "model.layers.0.mlp.up_proj.weight": torch.nan,
        "model.norm.weight": -torch.inf,
    }
    folder = damaged(model_folder(job, tmp_path / "model"), names)
    told = r"model\.layers\.0\.mlp\.up_proj\.weight has NaN or .* numbers, as have 2 other weights: copy"
    with pytest.raises(UnsupportedModel, match=told), worker(job, folder):
        pass


def test_a_teacher_is_looked_at_too(tmp_path: Path) -> None:
    job = trainer_job(TAUGHT)
    folder = model_folder(job, tmp_path / "model")
    teacher = damaged(model_folder(trainer_job(seed=1), tmp_path / "teacher"), {WEIGHT: torch.nan})
    with (
        pytest.raises(UnsupportedModel, match=rf"^{teacher}: {WEIGHT} has NaN"),
        worker(job, folder, teacher_folder=teacher),
    ):
        pass


def _set_up(rank: int, world_size: int, store: Path, folder: Path) -> str:
    job = with_ranks(trainer_job(), world_size)
    try:
        with worker(job, folder, rank, world_size, store):
            return ""
    except UnsupportedModel as error:
        return str(error)


def test_all_ranks_know_it_whichever_has_the_part(tmp_path: Path) -> None:
    ranks = RankProcesses(2)
    try:
        folder = model_folder(trainer_job(), tmp_path / "model")
        assert ranks.run(2, _set_up, folder) == ["", ""]
        # The last number lies on the second rank.
        damaged(folder, {WEIGHT: torch.nan})
        told = ranks.run(2, _set_up, folder)
        assert told[0] == told[1] and told[0].startswith(f"{folder}: {WEIGHT} has NaN"), told
    finally:
        ranks.close()
