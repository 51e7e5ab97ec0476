"""The model of a run that goes on, and the one that the job asks for now, before anything is started.

Guarantees: another shape of the model, or another adapter, than the newest checkpoint has is told by the
fields that ask for it. A checkpoint holds no config.json: that of the run's model lies in the run's folder.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_runtime.data.tokenizer import build_tokenizer
from rljob_runtime.driver.export import MODEL_FILES
from rljob_runtime.driver.model_folder import checkpoint_root
from rljob_runtime.driver.resume import ResumeRefused, read_saved
from rljob_runtime.manifest.same_model import Config, of_folder, of_random, other_adapter
from rljob_runtime.weights.model_files import read_config


def check_model(job: RLJob, run_folder: Path, folder: Path) -> None:
    """Raises `ResumeRefused` where there are problems, and what `model_problems` raises."""
    found = model_problems(job, run_folder, folder)
    if found:
        raise ResumeRefused(" ".join(map(str, found)).rstrip("."))


def model_problems(job: RLJob, run_folder: Path, folder: Path) -> list[Problem]:
    """In what the job asks for another model than the run in `run_folder` has checkpoints of; empty where it
    has none. `folder` is the manifest's. Raises `CheckpointError`, `ModelFolderError`, `DataError`."""
    saved = read_saved(checkpoint_root(job, run_folder, folder))
    if saved is None:
        return []
    adapter = job.spec.training.adapter
    other = other_adapter(saved.state.adapter, adapter.words if adapter is not None else None)
    return [*_other_shape(job, folder, _began_with(run_folder)), *([other] if other is not None else [])]


def _other_shape(job: RLJob, folder: Path, began: Config) -> Iterator[Problem]:
    training = job.spec.training
    model = training.model
    if model.random is not None:
        tokens = build_tokenizer(training.tokenizer, folder, None).vocabulary_size
        yield from of_random(model.random, tokens, began)
    elif model.path is not None:
        yield from of_folder(model.path, read_config(folder / model.path), began)


def _began_with(run_folder: Path) -> Config:
    """What config.json says of the run's model; nothing where that cannot be read: then it is the trainer
    that finds out."""
    try:
        said = json.loads((run_folder / MODEL_FILES / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
