"""Weights that are others have another digest; those that only lie otherwise have not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from rljob_runtime.weights.model_files import ModelFolderError
from rljob_runtime.weights.sampled_digest import blocks, sampled_digest

Tensors = dict[str, NDArray[np.generic]]
_LARGE = 100_000


def model(seed: int = 0) -> Tensors:
    random = np.random.default_rng(seed)
    return {
        "embed.weight": random.standard_normal((_LARGE // 10, 10), np.float32),
        "layer.weight": random.standard_normal((100, 100)).astype(np.float16),
        "norm.weight": np.ones(7, np.float32),
    }


def folder_with(folder: Path, *files: Tensors, metadata: dict[str, str] | None = None) -> Path:
    folder.mkdir()
    for number, tensors in enumerate(files):
        save_file(tensors, folder / f"model-{number}.safetensors", metadata)
    return folder


def changed(change: Callable[[Tensors], None]) -> Tensors:
    tensors = model()
    change(tensors)
    return tensors


def trained(tensors: Tensors) -> None:
    """A small update, most of which rounds away in 16 bits."""
    each = tensors["layer.weight"].astype(np.float32)
    tensors["layer.weight"] = (each * (1 + 3e-4 * np.random.default_rng(1).random(each.shape))).astype("f2")


def one_small_tensor(tensors: Tensors) -> None:
    tensors["norm.weight"][3] = 2


def another_name(tensors: Tensors) -> None:
    tensors["norm.bias"] = tensors.pop("norm.weight")


def another_shape(tensors: Tensors) -> None:
    tensors["layer.weight"] = tensors["layer.weight"].reshape(50, 200)


def another_format(tensors: Tensors) -> None:
    tensors["layer.weight"] = tensors["layer.weight"].view("i2")


def test_the_same_weights_that_lie_otherwise(tmp_path: Path) -> None:
    """In shards, in another order, with another remark, in another folder."""
    whole, (first, *others) = model(), model().items()
    expected = sampled_digest(folder_with(tmp_path / "a", whole))
    assert sampled_digest(folder_with(tmp_path / "b", dict(others), dict([first]))) == expected
    assert sampled_digest(folder_with(tmp_path / "c", whole, metadata={"format": "pt"})) == expected


@pytest.mark.parametrize(
    "tensors",
    [model(1), *map(changed, (trained, one_small_tensor, another_name, another_shape, another_format))],
    ids=["another start", "trained", "one small tensor", "another name", "another shape", "another format"],
)
def test_other_weights(tmp_path: Path, tensors: Tensors) -> None:
    digests = {
        sampled_digest(folder_with(tmp_path / name, each)) for name, each in [("a", model()), ("b", tensors)]
    }
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, []),
        (1, [(0, 1)]),
        (12_288, [(0, 12_288)]),
        (12_289, [(0, 4096), (4096, 4096), (8193, 4096)]),
        (1 << 40, [(0, 4096), ((1 << 39) - 2048, 4096), ((1 << 40) - 4096, 4096)]),
    ],
)
def test_the_blocks_of_a_tensor(size: int, expected: list[tuple[int, int]]) -> None:
    assert blocks(size) == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "has no \\*.safetensors"),
        (b"", "not a safetensors file, or cut short"),
        (b"\x02" + bytes(7) + b"[]", "not a safetensors file, or cut short"),
        (b"\x09" + bytes(7) + b'{"a": {}}', "not a safetensors file, or cut short"),
        ("cut", "not a safetensors file, or cut short: copy it from the model again"),
    ],
)
def test_a_folder_that_cannot_be_read_is_told(
    tmp_path: Path, content: bytes | str | None, words: str
) -> None:
    folder = folder_with(tmp_path / "a", *([model()] if content == "cut" else []))
    if content == "cut":
        (file,) = folder.iterdir()
        content = file.read_bytes()[:-100]
    if isinstance(content, bytes):
        (folder / "model-0.safetensors").write_bytes(content)
    with pytest.raises(ModelFolderError, match=words):
        sampled_digest(folder)
