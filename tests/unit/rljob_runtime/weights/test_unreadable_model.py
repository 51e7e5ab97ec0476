"""A model that is there, and that this user may not read, as of a colleague on a shared disk."""

import errno
import os
from pathlib import Path

import pytest

from rljob_runtime.data.errors import DataError
from rljob_runtime.data.tokenizer import _check_json
from rljob_runtime.weights.model_files import ModelFolderError, examine, read_config
from tests.support.runtime.manifest_files import make


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        make(tmp_path / "m" / name)
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    return tmp_path / "m"


def locked(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Nobody may read a file: not even root, who runs tests."""
    opened = os.open

    def open_(path: Path, *arguments: int) -> int:
        if Path(path) == file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments)

    monkeypatch.setattr("os.open", open_)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_is_named(model: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    locked(monkeypatch, model / name)
    _, wrong = examine(model)
    assert [str(each) for each in wrong] == [f"{model / name} cannot be read: Permission denied"]


def test_a_folder_that_cannot_be_searched_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_symlink(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_symlink", is_symlink)
    with pytest.raises(ModelFolderError, match="cannot be read: Permission denied"):
        read_config(model)
    assert len(examine(model)[1]) == 1


def test_a_file_of_the_tokenizer_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked(monkeypatch, model / "tokenizer.json")
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be read: Permission denied"):
        _check_json(model)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_is_not_waited_for(model: Path, name: str) -> None:
    (model / name).unlink()
    os.mkfifo(model / name)
    assert examine(model)[1]
