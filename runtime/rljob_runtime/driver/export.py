"""The trained policy as a Hugging Face folder, made from a checkpoint.

Guarantees: the folder has its name only once it is whole and on the disk; it holds the checkpoint's weights
in the number format that the engines sampled with, the model's configuration and the job's tokenizer; any
number of trainer ranks may have written the checkpoint; one file's weights at a time are in memory. Takes
neither Ray nor an accelerator.

What is not weights comes from the run's `model_files`, written when the run starts, so that an export needs
the run's folder alone; where an adapter was trained, also the model that it is for, unless the adapter alone
is exported.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.adapter import Adapter
from rljob_api.training import Training
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.driver.model_folder import CHECKPOINTS
from rljob_runtime.manifest.load import ManifestError, read
from rljob_runtime.run_folder import MANIFEST
from rljob_runtime.trainer import checkpoint
from rljob_runtime.trainer.checkpoint import CheckpointError
from rljob_runtime.weights.adapter import CONFIG as ADAPTER_CONFIG
from rljob_runtime.weights.adapter import TENSORS as ADAPTER_TENSORS
from rljob_runtime.weights.adapter import config as adapter_config
from rljob_runtime.weights.adapter import write_config
from rljob_runtime.weights.contents import TIED_HEAD, tensor_shapes
from rljob_runtime.weights.shards import INDEX, index_of, plan_shards

if TYPE_CHECKING:
    from rljob_runtime.trainer.checkpoint_tensors import SavedPolicy
    from rljob_runtime.trainer.merged_adapter import MergedPolicy

MODEL = "model"
"""Folder of the trained model in a run's folder."""
ADAPTER = "adapter"
"""Folder of the trained adapter in a run's folder, where there is one."""
MODEL_FILES = "model_files"
"""Folder of what a model has beside weights, in a run's folder."""
_CONFIG = "config.json"
_COPIED = (_CONFIG, "generation_config.json")
_FILE_BYTES = 2 * 2**30
"""Most bytes of weights in one file."""


class ExportRefused(ValueError):
    """There is nothing to export, or no place for it; the message says what to do."""


def keep_model_files(
    model_folder: Path, tokenizer: TextTokenizer, run_folder: Path, adapter: Adapter | None = None
) -> None:
    """Copy what a model has beside its weights, configuration and tokenizer, to the run's folder; where an
    adapter is trained, also its configuration. Raises `NoSuchLayers`."""
    with _whole(run_folder / MODEL_FILES) as folder:
        for name in _COPIED:
            if (model_folder / name).is_file():
                shutil.copyfile(model_folder / name, folder / name)
        tokenizer.save_pretrained(folder)
        if adapter is not None:
            base = str(model_folder.resolve())
            write_config(folder, adapter_config(tensor_shapes(model_folder), adapter, base))


def export(run_folder: Path, destination: Path, step: int | None = None) -> int:
    """Write the model of a run's checkpoint, the newest or that of `step`, to `destination`, in place of what
    is there. Returns the checkpoint's step. Raises `ExportRefused`, `CheckpointError`."""
    source, training = _checkpoint(run_folder, step), _training(run_folder)
    files, dtype, done = run_folder / MODEL_FILES, training.model.dtype, checkpoint.step_of(source)
    base = _base(files) if training.adapter is not None else None
    with _written(destination, run_folder, source) as folder:
        shutil.copytree(files, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(ADAPTER_CONFIG))
        config = json.loads((files / _CONFIG).read_text())
        # The older name of `dtype`, which would contradict it.
        config.pop("torch_dtype", None)
        (folder / _CONFIG).write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n")
        policy = _policy(source, base, training.adapter)
        _write_weights(policy, folder, dtype, {"step": str(done)})
    return done


def export_adapter(run_folder: Path, destination: Path, step: int | None = None) -> int:
    """Write the adapter of a run's checkpoint, as peft and vLLM load it, with the tokenizer to `destination`,
    in place of what is there. Returns the checkpoint's step. Raises `ExportRefused`, `CheckpointError`."""
    source, training = _checkpoint(run_folder, step), _training(run_folder)
    if training.adapter is None:
        raise ExportRefused(f"{run_folder} has no adapter: it trained all weights (training.adapter)")
    with _written(destination, run_folder, source) as folder:
        files = run_folder / MODEL_FILES
        shutil.copytree(files, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_COPIED))
        _write_adapter(source, folder, training.model.dtype, {"step": str(checkpoint.step_of(source))})
    return checkpoint.step_of(source)


def _training(run_folder: Path) -> Training:
    """What the run was asked for."""
    files = run_folder / MODEL_FILES
    if not (files / _CONFIG).is_file():
        raise ExportRefused(
            f"{files} has no {_CONFIG}: the run's folder is not whole; --resume writes it anew"
        )
    try:
        return read(run_folder / MANIFEST).job.spec.training
    except ManifestError as error:
        raise ExportRefused("; ".join(map(str, error.findings)).rstrip(".")) from error


def _base(files: Path) -> Path:
    """The folder of the model that the run's adapter is for."""
    base = Path(json.loads((files / ADAPTER_CONFIG).read_text())["base_model_name_or_path"])
    if not (base / _CONFIG).is_file():
        raise ExportRefused(
            f"the model that the adapter is for is not at {base} any more: put it there again, or export the "
            "adapter alone (--adapter)"
        )
    return base


@contextmanager
def _written(destination: Path, run_folder: Path, source: Path) -> Iterator[Path]:
    """A new folder to fill, as of `_whole`; an error of the disk becomes `CheckpointError`."""
    try:
        with _whole(destination) as folder:
            yield folder
    except OSError as error:
        why = checkpoint.reason(error)
        raise CheckpointError(
            f"the model of step {checkpoint.step_of(source)} could not be written to {destination} ({why}); "
            f"{source} is whole: {checkpoint.cure(why)}, or export it elsewhere: rljob export {run_folder} "
            "FOLDER"
        ) from error


def _checkpoint(run_folder: Path, step: int | None) -> Path:
    root = run_folder / CHECKPOINTS
    # `exists` follows a link: this one leads nowhere, as when its volume is not mounted.
    if root.is_symlink() and not root.exists():
        raise ExportRefused(f"{root} leads to {root.readlink()}, which is not there")
    newest = checkpoint.newest(root)
    if newest is None:
        raise ExportRefused(f"{run_folder} has no checkpoint yet")
    if step is None:
        return newest
    there = checkpoint.steps(root)
    if step not in there:
        known = ", ".join(map(str, there))
        raise ExportRefused(f"{run_folder} has no checkpoint of step {step}; it has those of {known}")
    return newest.with_name(f"step_{step}")


def _policy(source: Path, base: Path | None, adapter: Adapter | None) -> "SavedPolicy | MergedPolicy":
    """The model of a checkpoint; `base` is the folder of the model that its adapter is for."""
    from rljob_runtime.trainer.checkpoint_tensors import SavedPolicy
    from rljob_runtime.trainer.merged_adapter import MergedPolicy

    saved = SavedPolicy(source)
    return saved if base is None or adapter is None else MergedPolicy(base, adapter, saved)


def _write_adapter(source: Path, folder: Path, dtype: str, metadata: dict[str, str]) -> None:
    """Write a checkpoint's adapter beside its configuration in `folder`."""
    import torch

    from rljob_runtime.trainer.adapter import exported_name
    from rljob_runtime.trainer.checkpoint_tensors import SavedPolicy
    from rljob_runtime.weights.write import write_weights

    saved = SavedPolicy(source)
    tensors = saved.tensors(list(saved.layout))
    form = getattr(torch, dtype)
    cast = {exported_name(name): tensor.to(form) for name, tensor in sorted(tensors.items())}
    write_weights(cast, folder / ADAPTER_TENSORS, metadata)


def _write_weights(
    policy: "SavedPolicy | MergedPolicy", folder: Path, dtype: str, metadata: dict[str, str]
) -> None:
    """Write the policy's tensors beside the configuration in `folder`. A tied head is left out: it is the
    input embedding."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from rljob_runtime.weights.folder_names import as_in_folder
    from rljob_runtime.weights.formats import format_of
    from rljob_runtime.weights.write import write_weights

    config = AutoConfig.from_pretrained(folder)
    # Without weights: it knows what the tensors are called in a folder.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tied = config.get_text_config().tie_word_embeddings
    layout = {name: each for name, each in policy.layout.items() if not (tied and name == TIED_HEAD)}
    form = {
        name: getattr(torch, format_of(name, dtype)) if each.dtype.is_floating_point else each.dtype
        for name, each in layout.items()
    }
    sizes = {name: each.size.numel() * form[name].itemsize for name, each in layout.items()}
    shards = plan_shards(sizes, _FILE_BYTES)
    written: dict[str, list[str]] = {}
    for file, names in shards.items():
        tensors = policy.tensors(names)
        pieces: dict[str, torch.Tensor] = {}
        for name in names:
            # Popped, so that a tensor of the checkpoint is freed as soon as it is cast.
            cast = tensors.pop(name).to(form[name])
            parts = as_in_folder(model, name, cast)
            # safetensors takes no tensors that share memory.
            pieces |= {part: tensor.clone() if len(parts) > 1 else tensor for part, tensor in parts.items()}
        write_weights(pieces, folder / file, metadata)
        written[file] = list(pieces)
    if len(shards) > 1:
        (folder / INDEX).write_text(index_of(written, sum(sizes.values())))


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which then takes the name and the place of `folder`; nothing is left of it where
    the body fails."""
    partial, old = (folder.with_name(f"{folder.name}.{end}") for end in ("tmp", "old"))
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        # Before the rename: a folder that has its name after a power failure has its contents too.
        checkpoint.all_to_disk(partial)
        # A folder cannot be renamed onto one that is not empty. Between the two renames there is none of the
        # name.
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
