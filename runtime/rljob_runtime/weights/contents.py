"""What a folder of weights holds: its tensors, from the headers of its `*.safetensors` alone; its files."""

import hashlib
from pathlib import Path
from typing import TypeAlias

import msgspec
from safetensors import SafetensorError, safe_open

from rljob_runtime.weights.safetensors_header import read_header

Shapes: TypeAlias = dict[str, tuple[int, ...]]

TIED_HEAD = "lm_head.weight"
"""Models with tied embeddings come with or without it; engines take the input embedding in its place."""


_ROTATIONS = "rotary_emb.inv_freq"
"""How the names of tensors end that old folders have of each layer: they are computed from config.json, and
neither transformers nor vLLM reads them."""


def tensor_shapes(folder: Path) -> Shapes:
    """Shape of each tensor by name, in order of names: the order in which weights are sent. Without those
    that nobody reads.

    Raises `FileNotFoundError` when there is no such file, `ValueError` when one is damaged or cut short.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder}: no *.safetensors in it")
    shapes: Shapes = {}
    for file in files:
        shapes |= _shapes_in(file)
    # Within a file and between files any order is allowed; both sides of a broadcast need the same one.
    return dict(sorted(shapes.items()))


def tensor_formats(folder: Path) -> dict[str, str]:
    """Number format of each of these tensors, as safetensors calls it. Raises as `tensor_shapes`."""
    return {
        each.name: each.dtype
        for file in sorted(folder.glob("*.safetensors"))
        for each in read_header(file)
        if not each.name.endswith(_ROTATIONS)
    }


def file_with(folder: Path, tensor: str) -> str:
    """The name of a file of `folder` that has this tensor, which one of them has."""
    return next(each.name for each in sorted(folder.glob("*.safetensors")) if tensor in _shapes_in(each))


def _shapes_in(file: Path) -> Shapes:
    try:
        with safe_open(file, framework="numpy") as opened:
            names = [name for name in opened.keys() if not name.endswith(_ROTATIONS)]  # noqa: SIM118
            return {name: tuple(opened.get_slice(name).get_shape()) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{file}: damaged ({error})") from None


def check_same_model(expected: Shapes, folder: Path) -> None:
    """Raise `ValueError` unless `folder` holds the tensors of the model that `expected` describes."""
    found = tensor_shapes(folder)
    for name, shape in expected.items():
        if name not in found:
            raise ValueError(f"{folder}: not the weights of this model, {name} is missing")
        if found[name] != shape:
            raise ValueError(
                f"{folder}: {name} has shape {list(found[name])}, this model's has {list(shape)}"
            )
    unknown = found.keys() - expected.keys() - {TIED_HEAD}
    if unknown:
        raise ValueError(f"{folder}: not the weights of this model, it has no {min(unknown)}")


class FileEntry(msgspec.Struct, frozen=True):
    """One file of a folder."""

    name: str
    size: int
    """Bytes."""
    modified: int
    """When it was last written, in whole seconds since the epoch: the same wherever storage is shared."""
    sha256: str = ""
    """Checksum of the content, in hexadecimal; empty where it was not asked for."""


def folder_files(folder: Path, checksums: bool) -> tuple[FileEntry, ...]:
    """The files directly in a folder, in order of names, without hidden ones and those whose names are no
    text, which nobody reads by their name; raises `OSError`."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and _is_named(path.name)]
    return tuple(_entry(path, checksums) for path in paths)


def _is_named(name: str) -> bool:
    # Bytes that are not UTF-8 stand for themselves as halves of surrogates.
    return not name.startswith(".") and not any("\ud800" <= char <= "\udfff" for char in name)


def _entry(path: Path, checksum: bool) -> FileEntry:
    status = path.stat()
    return FileEntry(path.name, status.st_size, int(status.st_mtime), _sha256(path) if checksum else "")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
