"""The model of a run that goes on, and the one that the job asks for now, before anything is started.

Guarantees: another shape of the model, or another adapter, than the newest checkpoint has is told by the
fields that ask for it; so are other weights than the run began with, where it still needs those: under an
adapter, or as the reference of a KL penalty. Else the checkpoint has all weights. A checkpoint holds no
config.json: that of the run's model lies in the run's folder.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_runtime.data.tokenizer import build_tokenizer
from rljob_runtime.driver.export import MODEL_FILES
from rljob_runtime.driver.model_folder import checkpoint_root, initial_folder
from rljob_runtime.driver.resume import ResumeRefused, Saved, read_saved
from rljob_runtime.manifest.same_model import Config, of_folder, of_random, other_adapter, other_weights
from rljob_runtime.weights.model_files import read_config
from rljob_runtime.weights.sampled_digest import sampled_digest


def check_model(job: RLJob, run_folder: Path, folder: Path) -> str | None:
    """The digest of the weights that the run in `run_folder` began with; None where no checkpoint says it.
    Raises `ResumeRefused` where there are problems, and what `model_problems` raises."""
    saved = read_saved(checkpoint_root(job, run_folder, folder))
    found = _problems(job, run_folder, folder, saved)
    if found:
        raise ResumeRefused(" ".join(map(str, found)).rstrip("."))
    return saved.state.began_with if saved is not None else None


def model_problems(job: RLJob, run_folder: Path, folder: Path) -> list[Problem]:
    """In what the job asks for another model than the run in `run_folder` has checkpoints of; empty where it
    has none. `folder` is the manifest's. Raises `CheckpointError`, `ModelFolderError`, `DataError`,
    `OSError`."""
    return _problems(job, run_folder, folder, read_saved(checkpoint_root(job, run_folder, folder)))


def _problems(job: RLJob, run_folder: Path, folder: Path, saved: Saved | None) -> list[Problem]:
    if saved is None:
        return []
    adapter = job.spec.training.adapter
    other = other_adapter(saved.state.adapter, adapter.words if adapter is not None else None)
    found = [*_other_shape(job, folder, _config_of(run_folder)), *([other] if other is not None else [])]
    # Weights of another model, or without the adapter, are no question of their own.
    return found or list(_other_weights(job, run_folder, folder, saved.state.began_with))


def _other_shape(job: RLJob, folder: Path, began: Config) -> Iterator[Problem]:
    training = job.spec.training
    model = training.model
    if model.random is not None:
        tokens = build_tokenizer(training.tokenizer, folder, None).vocabulary_size
        yield from of_random(model.random, tokens, began)
    elif model.path is not None:
        yield from of_folder(model.path, read_config(folder / model.path), began)


def _other_weights(job: RLJob, run_folder: Path, folder: Path, began_with: str | None) -> Iterator[Problem]:
    training = job.spec.training
    if training.adapter is not None:
        use = "to which its adapter belongs"
    elif training.algorithm.kl is not None:
        use = "which are the reference of algorithm.kl"
    else:
        return
    if began_with is None:
        return
    weights = initial_folder(job, run_folder, folder)
    named = training.model.path or str(weights)
    field = "path" if training.model.path is not None else "random"
    # A random model that is gone would be made anew, by another seed or another version of torch.
    now = sampled_digest(weights) if any(weights.glob("*.safetensors")) else None
    if now != began_with:
        yield other_weights(field, named, use, there=now is not None)


def _config_of(run_folder: Path) -> Config:
    """What config.json says of the run's model; nothing where that cannot be read: then it is the trainer
    that finds out."""
    try:
        said = json.loads((run_folder / MODEL_FILES / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
