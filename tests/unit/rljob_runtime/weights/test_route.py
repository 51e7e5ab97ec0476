"""Where a job's weights go on one machine, and what becomes of them."""

import os
from pathlib import Path

import pytest

from rljob_api import RLJob
from rljob_runtime.net.keys import Keyring
from rljob_runtime.site.scratch import hold
from rljob_runtime.weights import route, shm
from rljob_runtime.weights.route import WeightRoute, open_route
from tests.support.jobs import job


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shared memory, for the test."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(shm, "SHARED_MEMORY", folder)
    return folder


def opened(tmp_path: Path) -> WeightRoute:
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "run").mkdir(exist_ok=True)
    return open_route(RLJob.model_validate(job()), tmp_path / "model", tmp_path / "run", None, Keyring())


def left_by_a_killed_run(folder: Path) -> None:
    """A driver's folder with that of its trainer, which nobody holds any more."""
    for each in (folder, folder / "start-1"):
        os.close(hold(each))
    (folder / "start-1" / "v7").mkdir()


def test_the_next_start_finds_what_a_killed_run_left(shared: Path, tmp_path: Path) -> None:
    left_by_a_killed_run(shared / "rljob-test-1")
    left_by_a_killed_run(tmp_path / "run" / "weights")
    made = opened(tmp_path)
    assert made.root is not None and made.root.parent == shared
    assert list(shared.iterdir()) == [made.root]
    assert not (tmp_path / "run" / "weights").exists()
    made.close()
    assert list(shared.iterdir()) == []


def test_what_is_published_outlasts_a_lost_trainer(shared: Path, tmp_path: Path) -> None:
    made = opened(tmp_path)
    assert made.root is not None
    os.close(hold(made.root / "start-1"))  # its process was killed
    (made.root / "start-1" / "v3").mkdir()
    shm.choose_root("another", tmp_path, 1, 1)
    assert (made.root / "start-1" / "v3").is_dir(), "engines read it until the next version"
    made.close()


def test_where_memory_does_not_suffice_the_disk_is_used(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "_COPIES", 10**15)
    made = opened(tmp_path)
    assert made.root == tmp_path / "run" / "weights" and made.root.is_dir()
    made.close()
    assert not made.root.exists()
