"""The Hugging Face folder that engines and trainer load."""

from pathlib import Path

from rljob_api import RLJob
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.run_folder import RunOptions


def engine_model(job: RLJob, options: RunOptions, tokenizer: TextTokenizer) -> Path:
    """The folder of the job's initial model; a random model is written into the run's folder first."""
    model = job.spec.training.model
    if model.path is not None:
        return options.manifest_folder / model.path
    folder = options.folder / "model"
    if model.random is not None and not (folder / "config.json").exists():
        from transformers.utils.logging import disable_progress_bar

        from rljob_runtime.trainer.model import save_initial_model

        disable_progress_bar()
        unfinished = folder.with_suffix(".tmp")
        save_initial_model(
            job, tokenizer.vocabulary_size, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, unfinished
        )
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)
    return folder


def checkpoint_root(job: RLJob, run_folder: Path, manifest_folder: Path) -> Path:
    """The folder of the job's checkpoints."""
    path = job.spec.training.checkpoint.path
    return manifest_folder / path if path is not None else run_folder / "checkpoints"
