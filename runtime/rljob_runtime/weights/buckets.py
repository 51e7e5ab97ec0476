"""Tensors side by side in a few runs of bytes, so that a version takes few transfers.

Guarantees: every tensor is in exactly one bucket, whole, in the order given; a bucket has at most `limit`
bytes, or a single larger tensor; sender and receivers that are given the same shapes make the same buckets.
"""

from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import NamedTuple

from rljob_runtime.weights.contents import Shapes
from rljob_runtime.weights.formats import format_of
from rljob_runtime.weights.safetensors_header import read_header

BUCKET_BYTES = 128 * 2**20
"""Large enough that the time of a transfer is that of its bytes."""
_ALIGNMENT = 16
"""Bytes; no number format needs more."""

NUMBER_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1}
"""By torch's names."""
_STORED = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16", "I64": "int64",
           "I32": "int32", "U8": "uint8"}  # fmt: skip
"""torch's names of what safetensors calls otherwise."""


class Placed(NamedTuple):
    """A tensor in a bucket."""

    name: str
    dtype: str
    """torch's name."""
    shape: tuple[int, ...]
    begin: int
    """Where it lies, in bytes from the bucket's beginning."""

    @property
    def size(self) -> int:
        """In bytes."""
        return NUMBER_BYTES[self.dtype] * prod(self.shape)


class Bucket(NamedTuple):
    """A run of bytes."""

    size: int
    tensors: tuple[Placed, ...]
    begin: int = 0
    """Where it lies in its file, in bytes."""


def wire_buckets(shapes: Shapes, dtype: str, limit: int = BUCKET_BYTES) -> list[Bucket]:
    """The buckets in which the tensors of a job of this number format are sent."""
    buckets: list[Bucket] = []
    placed: list[Placed] = []
    filled = 0
    for name, shape in shapes.items():
        form = format_of(name, dtype)
        size = NUMBER_BYTES[form] * prod(shape)
        begin = -(-filled // _ALIGNMENT) * _ALIGNMENT
        if placed and begin + size > limit:
            buckets.append(Bucket(filled, tuple(placed)))
            placed, begin = [], 0
        placed.append(Placed(name, form, shape, begin))
        filled = begin + size
    return [*buckets, Bucket(filled, tuple(placed))] if placed else buckets


def file_buckets(file: Path, limit: int = BUCKET_BYTES) -> list[Bucket]:
    """The buckets that a *.safetensors consists of. Raises `ValueError` for one that is damaged, or has
    numbers of a format that is not known here."""
    buckets: list[Bucket] = []
    placed: list[Placed] = []
    begin = 0
    for tensor in stored_tensors(file):
        if placed and tensor.begin + tensor.size - begin > limit:
            buckets.append(_file_bucket(placed, begin))
            placed = []
        if not placed:
            begin = tensor.begin
        placed.append(tensor)
    return [*buckets, _file_bucket(placed, begin)] if placed else buckets


def _file_bucket(tensors: Iterable[Placed], begin: int) -> Bucket:
    inside = tuple(tensor._replace(begin=tensor.begin - begin) for tensor in tensors)
    return Bucket(inside[-1].begin + inside[-1].size, inside, begin)


def stored_tensors(file: Path) -> list[Placed]:
    """The tensors of a *.safetensors, in the order in which they lie in it, from its header alone; `begin`
    counts from the file's beginning. Raises `ValueError`, as `file_buckets`."""
    found = []
    for each in read_header(file):
        if each.dtype not in _STORED:
            raise ValueError(f"{file}: {each.name} has numbers of the format {each.dtype}")
        tensor = Placed(each.name, _STORED[each.dtype], each.shape, each.begin)
        if tensor.size != each.end - each.begin:
            raise ValueError(f"{file}: damaged ({each.name} has {each.end - each.begin} bytes)")
        found.append(tensor)
    return found
