"""Published weights: whole or absent, kept while they are read, removed afterwards."""

import errno
import os
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from rljob_runtime.weights import shm
from rljob_runtime.weights.shm import (
    NoRoom,
    StoreInUse,
    WeightsGone,
    WeightStore,
    choose_root,
    reading,
)
from tests.support.disks import small_disk


def fill(text: str = "weights"):  # type: ignore[no-untyped-def]
    return lambda folder: (folder / "model.safetensors").write_text(text)


def visible(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("[!.]*"))


def test_the_newest_versions_stay(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "store", keep=2)
    for version in range(1, 5):
        folder = store.publish(version, fill(str(version)))
        assert (folder / "model.safetensors").read_text() == str(version)
    assert visible(store.root) == ["v3", "v4"]
    store.close()
    assert not store.root.exists()


def test_what_is_read_is_not_removed(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "store", keep=1)
    first = store.publish(1, fill())
    with reading(first), reading(first) as folder:
        store.publish(2, fill())
        store.publish(3, fill())
        assert (folder / "model.safetensors").read_text() == "weights"
        assert visible(store.root) == ["v1", "v3"]
    store.publish(4, fill())
    assert visible(store.root) == ["v4"]
    with pytest.raises(WeightsGone, match="v1 was removed: a newer version is published"), reading(first):
        pass
    store.close()


def test_a_reader_that_comes_while_a_folder_is_removed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has opened the lock file; the remover gets the lock first."""
    store = WeightStore(tmp_path / "store", keep=1)
    first = store.publish(1, fill())
    remove, removing, opened = shm.shutil.rmtree, threading.Event(), threading.Event()
    flock = shm.fcntl.flock

    def late_flock(handle: int, operation: int) -> None:
        if threading.current_thread().name == "reader":
            opened.set()
            assert removing.wait(10)
        flock(handle, operation)

    def slow_remove(path: Path) -> None:
        removing.set()
        remove(path)

    monkeypatch.setattr(shm.fcntl, "flock", late_flock)
    monkeypatch.setattr(shm.shutil, "rmtree", slow_remove)
    outcome: list[str] = []

    def read() -> None:
        try:
            with reading(first):
                outcome.append("read")
        except WeightsGone:
            outcome.append("gone")

    thread = threading.Thread(target=read, name="reader")
    thread.start()
    assert opened.wait(10)
    store.publish(2, fill())
    thread.join(10)
    assert outcome == ["gone"]
    monkeypatch.undo()
    store.close()


def test_a_version_published_again_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "store", keep=2)
    first, second = store.publish(5, fill("old")), store.publish(5, fill("new"))
    assert (first.name, second.name) == ("v5", "v5-2")
    assert (first / "model.safetensors").read_text() == "old"
    assert (second / "model.safetensors").read_text() == "new"
    store.close()


def test_a_full_store_keeps_what_it_has(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "store", keep=1)
    store.publish(1, fill())

    def no_space(folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(
        NoRoom, match=r"no room for the weights of version 2 in .* \(No space left on device\)"
    ):
        store.publish(2, no_space)
    assert visible(store.root) == ["v1"]
    store.close()


def test_one_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_runtime.site.scratch._TURN_SECONDS", 0.1)
    store = WeightStore(tmp_path / "store", keep=1)
    with pytest.raises(StoreInUse, match="is in use by another trainer"):
        WeightStore(tmp_path / "store", keep=1)
    store.close()


def test_a_successor_keeps_what_engines_may_read_until_it_publishes(tmp_path: Path) -> None:
    root = tmp_path / "store"
    killed = WeightStore(root, keep=1)
    killed.publish(1, fill())
    (root / "v2.partial").mkdir()
    os.close(killed._owner)  # As the kernel does when a process is killed.
    killed._owner = -1
    store = WeightStore(root, keep=1)
    assert visible(root) == ["v1"]
    store.publish(1, fill())
    assert visible(root) == ["v1-2"]
    store.close()


def test_stores_of_killed_jobs_make_room_for_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    alive = WeightStore(tmp_path / "rljob-alive" / "start-1", keep=1)
    killed = WeightStore(tmp_path / "rljob-killed" / "start-1", keep=1)
    os.close(killed._owner)
    killed._owner = -1
    (tmp_path / "rljob-mine").mkdir()
    (tmp_path / "other").mkdir()
    choose_root("next", tmp_path / "run", 2, 1000, shared=tmp_path)
    assert visible(tmp_path) == ["other", "rljob-alive", "rljob-mine"]
    assert "removed" in caplog.text and "rljob-killed" in caplog.text
    alive.close()


@pytest.mark.parametrize(
    ("free", "version_bytes", "told"),
    [
        (40 * 2**20, 30 * 2**20, "has 40.0 MiB free, 2 copies of the weights take 60.0 MiB"),
        (3 * 2**30, 2 * 2**30, "has 3.0 GiB free, 2 copies of the weights take 4.0 GiB"),
        (2 * 2**30, 2**30 + 2**19, "has 2048.0 MiB free, 2 copies of the weights take 2049.0 MiB"),
        (0, 30 * 2**20, "has 0.0 MiB free, 2 copies of the weights take 60.0 MiB"),
    ],
)
def test_too_little_room_is_told_in_a_unit_that_shows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    free: int, version_bytes: int, told: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(shm.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    choose_root("job-1", tmp_path / "run", 2, version_bytes, shared=tmp_path)
    assert told in caplog.text


def test_read_only_shared_memory_is_no_place_for_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "shm", megabytes=1) as shared:
        subprocess.run(["mount", "-o", "remount,ro", str(shared)], check=True)
        assert choose_root("job-1", tmp_path / "run", 2, 1000, shared) == tmp_path / "run" / "weights"
    assert f"{shared} is mounted read-only: the weights go through" in caplog.text


def test_where_the_weights_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert choose_root("job-1", tmp_path / "run", 2, 1000, shared=tmp_path) == tmp_path / "rljob-job-1"
    assert caplog.text == ""
    assert choose_root("job-1", tmp_path / "run", 2, 10**15, shared=tmp_path) == tmp_path / "run" / "weights"
    assert "2 copies of the weights take 1862645.1 GiB" in caplog.text
    assert (
        choose_root("job-1", tmp_path / "run", 1, 1, shared=tmp_path / "none") == tmp_path / "run" / "weights"
    )
    assert f"there is no {tmp_path / 'none'}: the weights go through" in caplog.text
