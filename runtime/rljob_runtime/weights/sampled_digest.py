"""Whether two folders hold the same weights, without reading all of them.

A digest of each tensor's name, number format and shape, and of a few blocks of its numbers. Training changes
numbers all over a tensor, so that weights of another model, of another random start or of a fine-tuned model
differ in the blocks; a file that is copied, moved, or cut into shards otherwise has the same digest. What it
does not tell: a change of single numbers between the blocks, as of one row of an embedding.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rljob_runtime.weights.model_files import ModelFolderError, no_safetensors
from rljob_runtime.weights.safetensors_header import StoredTensor, read_header

_BLOCK = 4096
"""Bytes of a block: 2,048 numbers of 16 bits, so that even an update that rounds away in most of them is
seen."""
_BLOCKS = 3
"""Of each tensor: its beginning, its middle and its end; one of no more bytes than these is read whole."""
_THREADS = 16
"""Reads at a time: storage over a network takes a millisecond for each."""


def sampled_digest(folder: Path) -> str:
    """The digest of the `*.safetensors` in a folder, in hexadecimal. Raises `OSError`, and `ModelFolderError`
    where there are none, or one is damaged."""
    tensors = [each for file in sorted(folder.glob("*.safetensors")) for each in _stored(file)]
    if not tensors:
        raise ModelFolderError(f"{folder} has no *.safetensors: put the model's weights there")
    # Wherever they lie.
    tensors.sort(key=lambda each: each[0].name)
    whole = hashlib.sha256()
    for part in _parts(tensors):
        whole.update(part)
    return whole.hexdigest()


def tensor_digests(files: Sequence[Path]) -> dict[str, bytes]:
    """A digest of the same kind of each tensor in some `*.safetensors`, by its name. Raises `OSError`, and
    `ModelFolderError` where one is damaged."""
    tensors = [each for file in files for each in _stored(file)]
    return {tensor.name: part for (tensor, _), part in zip(tensors, _parts(tensors), strict=True)}


def _parts(tensors: Sequence[tuple[StoredTensor, Path]]) -> list[bytes]:
    """Digest of each of these, in order."""
    handles: dict[Path, int] = {}
    try:
        for file in sorted({file for _, file in tensors}):
            handles[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(lambda each: _part(each[0], handles[each[1]]), tensors, chunksize=64))
    finally:
        for handle in handles.values():
            os.close(handle)


def _stored(file: Path) -> list[tuple[StoredTensor, Path]]:
    try:
        return [(each, file) for each in read_header(file)]
    except ValueError as error:
        raise no_safetensors(file) from error


def _part(tensor: StoredTensor, handle: int) -> bytes:
    """Digest of one tensor."""
    found = hashlib.sha256(repr((tensor.name, tensor.dtype, tensor.shape)).encode())
    for begin, size in blocks(tensor.end - tensor.begin):
        found.update(os.pread(handle, size, tensor.begin + begin))
    return found.digest()


def blocks(size: int) -> list[tuple[int, int]]:
    """Where the blocks of a tensor of so many bytes begin, and how long they are."""
    if size <= _BLOCKS * _BLOCK:
        return [(0, size)] if size else []
    return [((size - _BLOCK) * number // (_BLOCKS - 1), _BLOCK) for number in range(_BLOCKS)]
