"""Where a run's models and checkpoints lie, and the Hugging Face folder that engines and trainer load."""

import json
import os
import shutil
from pathlib import Path

from rljob_api import RLJob
from rljob_api.model import RandomModel
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.manifest.same_model import of_random
from rljob_runtime.run_folder import INITIAL_MODEL, FolderRefused, RunOptions
from rljob_runtime.site.large_imports import large_imports
from rljob_runtime.trainer.checkpoint import CheckpointError, newest

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints in a run's folder, or a link to where they are."""


def engine_model(job: RLJob, options: RunOptions, tokenizer: TextTokenizer) -> Path:
    """The folder of the job's initial model; a random model is written into the run's folder first."""
    model = job.spec.training.model
    folder = initial_folder(job, options.folder, options.manifest_folder)
    if model.path is not None:
        return folder
    if options.model_made is not None:
        options.model_made()
    if model.random is not None and not _is_made(folder, model.random, tokenizer.vocabulary_size):
        # One of another shape: of a run that was stopped before its first checkpoint, and changed.
        shutil.rmtree(folder, ignore_errors=True)
        make_initial_model(job, folder, tokenizer)
    return folder


def initial_folder(job: RLJob, run_folder: Path, manifest_folder: Path) -> Path:
    """Where the job's initial model is; a random one may not be made yet."""
    path = job.spec.training.model.path
    return manifest_folder / path if path is not None else run_folder / INITIAL_MODEL


def _is_made(folder: Path, shape: RandomModel, tokens: int) -> bool:
    """Whether the folder holds a random model of this shape, for a tokenizer of so many tokens."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return not of_random(shape, tokens, config)


def import_makers() -> None:
    """Import what makes a model, which takes seconds."""
    with large_imports():
        from transformers import modeling_utils  # noqa: F401 - what makes a model would import it

        from rljob_runtime.trainer import model  # noqa: F401


def make_initial_model(job: RLJob, folder: Path, tokenizer: TextTokenizer) -> None:
    """Write the job's random model to a folder that is not there."""
    import_makers()
    from transformers.utils.logging import disable_progress_bar

    from rljob_runtime.trainer.model import save_initial_model

    disable_progress_bar()
    unfinished = folder.with_suffix(".tmp")
    save_initial_model(
        job, tokenizer.vocabulary_size, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, unfinished
    )
    tokenizer.save_pretrained(unfinished)
    # It has its name only once it is whole: a start that was killed is not taken for a model by the next one.
    unfinished.rename(folder)


def checkpoint_root(job: RLJob, run_folder: Path, manifest_folder: Path) -> Path:
    """The folder of the job's checkpoints, absolute."""
    path = job.spec.training.checkpoint.path
    return (manifest_folder / path if path is not None else run_folder / CHECKPOINTS).absolute()


def _lies_in(folder: Path, path: Path) -> bool:
    """Whether a path leads into a folder, or is one in it that leads elsewhere: it goes where that goes."""
    named = Path(os.path.normpath(path))
    return named.is_relative_to(folder) or path.resolve().is_relative_to(folder.resolve())


def check_checkpoints(job: RLJob, options: RunOptions) -> None:
    """Raise `FolderRefused` where a new run would write among the checkpoints of another, and where a resumed
    one would not find its own. Writes nothing: an earlier run that a new one takes the place of is still in
    the folder."""
    root = checkpoint_root(job, options.folder, options.manifest_folder)
    link = options.folder / CHECKPOINTS
    if not options.resume:
        # Those of an earlier run in the folder itself are moved aside with it.
        if not _lies_in(options.folder, root) and (found := _newest(root)) is not None:
            raise FolderRefused(
                f"{root} (spec.training.checkpoint.path) holds checkpoints of another run, up to "
                f"{found.name}: move them away, or name another folder"
            )
        return
    found = _newest(root)
    own = _newest(link)
    if own is not None and (found is None or found.resolve() != own.resolve()):
        raise FolderRefused(
            f"the run's checkpoints are in {link.resolve()}, up to {own.name}, and "
            f"spec.training.checkpoint.path names {root}: move them there, or set it back"
        )


def _newest(root: Path) -> Path | None:
    try:
        return newest(root)
    except CheckpointError as error:
        raise FolderRefused(str(error)) from error


def place_checkpoints(job: RLJob, options: RunOptions) -> None:
    """Make `checkpoints` in the run's folder a link to where they are, if that is elsewhere: where
    `check_checkpoints` refuses nothing."""
    root = checkpoint_root(job, options.folder, options.manifest_folder)
    link = options.folder / CHECKPOINTS
    if root == link:
        return
    if link.is_symlink():
        link.unlink()
    elif link.is_dir():
        # `rmdir` removes an empty folder alone.
        link.rmdir()
    link.symlink_to(root, target_is_directory=True)
