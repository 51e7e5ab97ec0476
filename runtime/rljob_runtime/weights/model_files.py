"""A Hugging Face model's folder, looked at without loading its weights.

Guarantees: what is wrong with a folder is one line that names the file and says what to do; importing this
loads neither torch nor transformers.
"""

import math
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rljob_api.errors import nearest
from rljob_runtime.data.errors import not_expanded, one_line
from rljob_runtime.data.json_file import NoJsonObject, read_object
from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.site.large_imports import large_imports
from rljob_runtime.weights.safetensors_header import read_header

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"
_CONFIG = "config.json"
_GENERATION = "generation_config.json"
_SIZES = (
    "vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "kv_lora_rank", "sliding_window",
)  # fmt: skip
"""Of a model, which a job is compared with."""


class ModelFolderError(UnsupportedModel):
    """The folder holds no usable model."""


def examine(folder: Path) -> tuple[dict[str, Any], list[ModelFolderError]]:
    """The folder's config.json, empty where it says nothing of use, and all that is wrong with the folder:
    weights that are missing or cut short, weights that are quantized, a model that cannot be trained. Of a
    model with parts for more than text it says what the part for text is; sizes that it leaves out are those
    that transformers takes. Imports transformers, which takes seconds."""
    config: dict[str, Any] = {}
    wrong: list[ModelFolderError] = []
    try:
        _check_is_a_model(folder)
    except ModelFolderError as error:
        return config, [error]
    try:
        _check_weights(folder)
        folder_parameters(folder)
    except ModelFolderError as error:
        wrong.append(error)
    try:
        config = _typed_config(folder)
    except ModelFolderError as error:
        return config, [*wrong, error]
    for check in (_check_not_quantized, _check_is_trainable):
        try:
            check(folder, config)
        except ModelFolderError as error:
            wrong.append(error)
    left_out = {} if wrong else _left_out(folder)
    # The kind of model stays that of the whole, by which transformers finds it.
    return left_out | text_part(config) | {"model_type": config["model_type"]}, wrong


def _left_out(folder: Path) -> dict[str, Any]:
    """What transformers takes for each of `_SIZES` in the part for text, as a config.json may leave out what
    is as by default, and families have names of their own. Without those that a family does not have;
    nothing where the file cannot be read so, which is told by whatever loads it."""
    from transformers import AutoConfig

    try:
        with loading(folder):
            text = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    except UnsupportedModel:
        return {}
    return {name: size for name in _SIZES if (size := getattr(text, name, None)) is not None}


def text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config.json says of the part of the model that reads and writes text, where it has more."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else dict(config)


def read_config(folder: Path) -> dict[str, Any]:
    """The model's config.json; raises `ModelFolderError` where that or the weights are missing."""
    _check_is_a_model(folder)
    _check_weights(folder)
    return _typed_config(folder)


def _check_is_a_model(folder: Path) -> None:
    try:
        _check_config(folder)
    except OSError as error:
        raise _unreadable(Path(error.filename or folder), error) from error


def _check_config(folder: Path) -> None:
    if folder.is_file():
        raise ModelFolderError(
            f"{folder} is a file: name the folder of the model, which has {_CONFIG} and *.safetensors"
        )
    if not folder.is_dir():
        advice = not_expanded(folder) or (
            "; it must hold config.json and *.safetensors of a Hugging Face model. Models are not fetched: "
            f"hf download NAME --local-dir {shlex.quote(str(folder))}"
        )
        raise ModelFolderError(f"no folder {folder}{advice}")
    _check_links(folder)
    config = folder / _CONFIG
    if not config.is_file() and (folder / _ADAPTER).is_file():
        raise ModelFolderError(
            f"{folder} holds an adapter alone ({_ADAPTER}): merge it into its model, as merge_and_unload of "
            "peft does, and save that"
        )
    if not config.is_file():
        raise ModelFolderError(f"{folder} has no {_CONFIG}: it is not the folder of a Hugging Face model")


def _check_links(folder: Path) -> None:
    """A snapshot of Hugging Face's cache is links into its other folders, which a copy of it alone lacks."""
    for path in (folder / _CONFIG, folder / INDEX, *sorted(folder.glob("*.safetensors"))):
        if path.is_symlink() and not path.exists():
            raise ModelFolderError(
                f"{path} is a link to {path.readlink()}, which is not there: copy the files themselves, as "
                "cp -L does, and where the folder is mounted mount what its links lead to"
            )


def _typed_config(folder: Path) -> dict[str, Any]:
    config = folder / _CONFIG
    value = _read_object(config)
    if not isinstance(value.get("model_type"), str):
        raise ModelFolderError(f"{config} names no model_type: copy the {_CONFIG} of the model there")
    return value


def _check_is_trainable(folder: Path, config: dict[str, Any]) -> None:
    """It is of an architecture that transformers has, and has with a causal language model."""
    with large_imports():
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    wanted, known = config["model_type"], list(transformers.CONFIG_MAPPING.keys())
    file, version = folder / _CONFIG, transformers.__version__
    if wanted not in known:
        near = nearest(wanted, known)
        hint = f"the nearest that it has is {near}" if near else "the model needs another version of it"
        raise ModelFolderError(f'{file}: transformers {version} has no model_type "{wanted}": {hint}')
    if wanted not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelFolderError(
            f'{file}: transformers {version} has no causal language model of the model_type "{wanted}": '
            "only one that predicts the next token can be trained"
        )


def _check_not_quantized(folder: Path, config: dict[str, Any]) -> None:
    found = config.get("quantization_config")
    if not found:
        return
    # Of a kind that says its name, as most do.
    kind = found.get("quant_method") if isinstance(found, dict) else None
    said = f"{kind} in quantization_config" if isinstance(kind, str) else "quantization_config"
    raise ModelFolderError(
        f"{folder / _CONFIG} tells of quantized weights ({said}): weights in bfloat16, float16 or "
        "float32 are needed, as the model has that these were made of"
    )


def check_part_of_model(folder: Path, file: str) -> None:
    """Raise `ModelFolderError` where transformers would not read this *.safetensors of a folder."""
    if (folder / WEIGHTS).is_file():
        named, place = {WEIGHTS}, WEIGHTS
    else:
        named = set(_read_object(folder / INDEX)["weight_map"].values())
        place = f"those that {INDEX} names"
    if file not in named:
        raise ModelFolderError(
            f"{folder}: {file} is no part of the model, which is in {place}: take it out of the folder, for "
            "engines read every *.safetensors"
        )


def folder_parameters(folder: Path) -> int:
    """Number of parameters in a folder's *.safetensors, from the files' headers."""
    sizes: dict[str, int] = {}
    # By name: a folder may have a model twice, in one file and in shards.
    for path in sorted(folder.glob("*.safetensors")):
        sizes |= _file_parameters(path)
    return sum(sizes.values())


@contextmanager
def loading(folder: Path) -> Iterator[None]:
    """What transformers raises over a model that it cannot load becomes `UnsupportedModel`; an error of the
    disk, or a folder that is gone, stays as it is, for the next try may find it whole."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    content = (ValueError, KeyError, TypeError, ImportError, SafetensorError, StrictDataclassError)
    try:
        yield
    except UnsupportedModel:
        raise
    except (OSError, *content) as error:
        # Errors of the system have a number; what transformers raises over the content has none.
        if getattr(error, "errno", None) is not None or not folder.is_dir():
            raise
        # It may be over this file, which it does not name.
        if (other := folder / _GENERATION).is_file():
            _read_object(other)
        raise UnsupportedModel(f"{folder}: the model does not load: {one_line(error)}") from error


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """transformers draws bars on stderr, in the middle of the live view."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _check_weights(folder: Path) -> None:
    """The files that transformers and the engines read are there."""
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    if not files:
        raise ModelFolderError(
            f"{folder} has no *.safetensors: the weights are missing, or in another format"
        )
    if WEIGHTS in files:
        return
    index = folder / INDEX
    if not index.is_file():
        raise ModelFolderError(
            f"{folder} has neither {WEIGHTS} nor {INDEX}, only {files[0]}"
            f"{' and others' if len(files) > 1 else ''}: copy the whole model there, under its own names"
        )
    indexed_files(folder)


def indexed_files(folder: Path) -> set[str]:
    """The files that a folder's index names. Raises `ModelFolderError` where it names none, or one that is
    not there."""
    index = folder / INDEX
    named = _read_object(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise ModelFolderError(f"{index} has no weight_map: copy it from the model again")
    wanted = {str(name) for name in named.values()}
    missing = sorted(wanted - {path.name for path in folder.glob("*.safetensors")})
    if missing:
        raise ModelFolderError(
            f"{folder} has no {missing[0]}, which {INDEX} names ({len(missing)} such "
            f"file{'s' if len(missing) > 1 else ''}): copy the whole model there"
        )
    return wanted


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except NoJsonObject as error:
        raise ModelFolderError(str(error)) from error


def no_safetensors(path: Path) -> ModelFolderError:
    """The error to raise for a file that cannot be read."""
    return ModelFolderError(f"{path} is not a safetensors file, or cut short: copy it from the model again")


def _file_parameters(path: Path) -> dict[str, int]:
    try:
        return {each.name: math.prod(each.shape) for each in read_header(path)}
    except ValueError as error:
        raise no_safetensors(path) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ModelFolderError:
    return ModelFolderError(f"{path} cannot be read: {error.strerror or error}")
