"""Folders that have a model in one file and in others: what trainer and vLLM would each read of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rljob_runtime.weights.model_files import ModelFolderError, folder_parameters
from rljob_runtime.weights.read_alike import check_read_alike

INDEX = "model.safetensors.index.json"
TWO = ["m-1.safetensors", "m-2.safetensors"]
ONE = {"a": 1.0, "b": 1.0}
"""The number that each tensor is full of."""
_TWICE = "a is another one in {} than in model.safetensors. The trainer reads that alone, and vLLM "


def write(folder: Path, files: dict[str, dict[str, float]], index: list[str] | None) -> None:
    for name, tensors in files.items():
        save_file({key: np.full((3, 2), value, np.float32) for key, value in tensors.items()}, folder / name)
    if index is not None:
        names = {tensor: file for file in index for tensor in files.get(file, {"a": 0.0})}
        (folder / INDEX).write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize(
    ("others", "index", "told_with_vllm"),
    [
        ({}, None, None),
        ({}, ["model.safetensors"], None),
        ({"m-1.safetensors": {"a": 1.0}, "m-2.safetensors": {"b": 1.0}}, TWO,
         None),
        ({"m-1.safetensors": {"a": 2.0}, "m-2.safetensors": {"b": 1.0}}, TWO,
         _TWICE.format("m-1.safetensors") + "those that model.safetensors.index.json names: take"),
        ({"old.safetensors": {"a": 2.0}}, ["model.safetensors"], None),
        ({"old.safetensors": {"a": 2.0}}, None,
         _TWICE.format("old.safetensors") + "every *.safetensors: take the files out of the folder"),
        ({"old.safetensors": ONE}, None, None),
        ({}, ["gone.safetensors"], "has no gone.safetensors, which model.safetensors.index.json names"),
        ({}, [], "model.safetensors.index.json has no weight_map: copy it from the model again"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("vllm", [False, True])
def test_vllm_begins_with_the_weights_that_are_trained(
    tmp_path: Path,
    others: dict[str, dict[str, float]],
    index: list[str] | None,
    told_with_vllm: str | None,
    vllm: bool,
) -> None:
    write(tmp_path, {"model.safetensors": ONE, **others}, index)
    if not vllm or told_with_vllm is None:
        check_read_alike(tmp_path, tied=False, vllm=vllm)
    else:
        with pytest.raises(ModelFolderError) as error:
            check_read_alike(tmp_path, tied=False, vllm=True)
        assert told_with_vllm in str(error.value)
    assert folder_parameters(tmp_path) == 12, "each once"


@pytest.mark.parametrize(
    ("missing", "tied", "told"),
    [("b", False, True), ("lm_head.weight", False, True), ("lm_head.weight", True, False)],
)
def test_the_trainer_has_every_tensor(tmp_path: Path, missing: str, tied: bool, told: bool) -> None:
    """transformers would draw what is missing at random."""
    write(tmp_path, {"model.safetensors": {"a": 1.0}, "m-1.safetensors": {"a": 1.0, missing: 1.0}}, None)
    if not told:
        check_read_alike(tmp_path, tied=tied, vllm=True)
        return
    with pytest.raises(ModelFolderError, match=rf"{missing} is not in model\.safetensors, which the trainer"):
        check_read_alike(tmp_path, tied=tied, vllm=False)


def test_the_same_weights_in_another_format_are_taken(tmp_path: Path) -> None:
    write(tmp_path, {"model.safetensors": ONE}, None)
    save_file({name: np.ones((3, 2), np.float16) for name in ONE}, tmp_path / "half.safetensors")
    check_read_alike(tmp_path, tied=False, vllm=True)


@pytest.mark.parametrize("stray", [{"a": 2.0}, {"b": 1.0}])
def test_a_folder_of_shards_with_another_file(tmp_path: Path, stray: dict[str, float]) -> None:
    write(tmp_path, {"m-1.safetensors": {"a": 1.0}, "stray.safetensors": stray}, ["m-1.safetensors"])
    if "a" in stray:
        check_read_alike(tmp_path, tied=False, vllm=True)
        return
    with pytest.raises(
        ModelFolderError, match=r"b is not in those that .*index.json names, which the trainer"
    ):
        check_read_alike(tmp_path, tied=False, vllm=False)
