"""The folder for the sockets of a process's engines."""

import os
from pathlib import Path

import pytest

from rljob_runtime.engines.vllm_sockets import SocketFolder
from rljob_runtime.site.scratch import hold


def test_the_folder_goes_with_the_last_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sockets = SocketFolder()
    folder = sockets.enter()
    assert sockets.enter() == folder and folder.parent == tmp_path
    (folder / "socket").touch()
    sockets.leave()
    assert (folder / "socket").exists()
    sockets.leave()
    assert list(tmp_path.iterdir()) == []
    assert sockets.enter() == folder and folder.is_dir()
    sockets.leave()


def test_what_a_killed_process_left_goes_with_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, living = tmp_path / "rljob-vllm-1", tmp_path / "rljob-vllm-2"
    os.close(hold(left))
    (left / "socket").touch()
    lock = hold(living)
    sockets = SocketFolder()
    folder = sockets.enter()
    assert sorted(tmp_path.iterdir()) == sorted([living, folder])
    sockets.leave()
    os.close(lock)
