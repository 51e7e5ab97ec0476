"""Folders that last as long as their process."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rljob_runtime.site import scratch
from rljob_runtime.site.scratch import Held, Scratch, hold, sweep, temporary

HOLD = """
import sys
from pathlib import Path
from rljob_runtime.site.scratch import hold
locks = [hold(Path(folder)) for folder in sys.argv[1:]]
print("held", flush=True)
sys.stdin.readline()
"""


@contextmanager
def holder(*folders: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that holds these folders until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, *map(str, folders)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_killed_process_leaves_what_the_next_sweep_removes(tmp_path: Path) -> None:
    mine, other = tmp_path / "rljob-a", tmp_path / "rljob-b"
    with holder(mine) as killed, holder(other):
        (mine / "weights").write_bytes(b"x" * 1000)
        assert sweep(tmp_path) == []
        killed.kill()
        killed.wait()
        assert sweep(tmp_path) == [mine]
        assert names(tmp_path) == ["rljob-b"]


def test_a_folder_for_sockets_comes_where_those_of_killed_processes_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    foreign = tmp_path / "other-queue"
    foreign.mkdir()
    with holder(tmp_path / "rljob-workers-a") as killed, holder(tmp_path / "rljob-queue-b"):
        killed.kill()
        killed.wait()
        mine = temporary("workers")
        assert names(tmp_path) == sorted(["other-queue", "rljob-queue-b", mine.path.name])
        assert mine.path.name.startswith("rljob-workers-") and mine.path.stat().st_mode & 0o777 == 0o700
        mine.close()
        assert names(tmp_path) == ["other-queue", "rljob-queue-b"]


def test_what_a_living_process_holds_inside_keeps_the_whole(tmp_path: Path) -> None:
    """A run's folder is the driver's, the one inside it the trainer's: either may live longer."""
    run = tmp_path / "rljob-run"
    with holder(run) as driver:
        with holder(run / "start-1"):
            pass
        assert sweep(tmp_path) == [], "the trainer is started again, and engines read what it left"
        assert names(run) == [".owner", "start-1"]
        driver.kill()
        driver.wait()
        assert sweep(tmp_path) == [run]


def test_the_processes_of_a_killed_run_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "rljob-run"
    with holder(run / "start-1") as trainer:
        with holder(run):
            pass
        monkeypatch.setattr(scratch, "_ENDING_SECONDS", 0.2)
        assert sweep(tmp_path) == []
        monkeypatch.setattr(scratch, "_ENDING_SECONDS", 20.0)
        swept: list[Path] = []
        sweeping = threading.Thread(target=lambda: swept.extend(sweep(tmp_path)))
        sweeping.start()
        time.sleep(0.2)
        assert swept == [] and sweeping.is_alive()
        trainer.kill()
        trainer.wait()
        sweeping.join(20)
        assert swept == [run]


def test_a_wait_ends_at_once_when_the_holder_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing looks from time to time: the kernel wakes whoever waits for the lock."""
    monkeypatch.setattr(scratch, "_TURN_SECONDS", 20.0)
    monkeypatch.setattr(scratch, "_ENDING_SECONDS", 20.0)
    run = tmp_path / "rljob-run"
    with holder(run / "start-1") as trainer, holder(run / "start-2") as engine:
        with holder(run):
            pass
        asleep: list[float] = []
        sleep = time.sleep

        def asleep_if_one_of_them(seconds: float) -> None:
            if threading.current_thread() in waits:
                asleep.append(seconds)
            else:
                sleep(seconds)

        monkeypatch.setattr(time, "sleep", asleep_if_one_of_them)
        held: list[int] = []
        swept: list[Path] = []
        waits = [
            threading.Thread(target=lambda: held.append(hold(run / "start-1"))),
            threading.Thread(target=lambda: swept.extend(sweep(tmp_path))),
        ]
        for wait in waits:
            wait.start()
        for process in (trainer, engine):
            process.kill()
            process.wait()
        waits[0].join(20)
        assert held != [] and asleep == []
        os.close(held[0])
        waits[1].join(20)
        assert swept == [run] and asleep == []


def test_a_wait_that_was_given_up_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_TURN_SECONDS", 0.1)
    folder = tmp_path / "rljob-a"
    with holder(folder) as owner:
        before = set(threading.enumerate())
        with pytest.raises(Held):
            hold(folder)
        waiting = set(threading.enumerate()) - before
        owner.kill()
        owner.wait()
        for thread in waiting:
            thread.join(20)
            assert not thread.is_alive()
    with holder(folder):
        assert sweep(tmp_path) == []
    assert sweep(tmp_path) == [folder]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "rljob-without-owner").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".owner").touch()
    (tmp_path / "rljob-file").touch()
    assert sweep(tmp_path) == []
    assert names(tmp_path) == ["other", "rljob-file", "rljob-without-owner"]
    assert sweep(tmp_path / "not there") == []


def test_a_folder_has_one_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_TURN_SECONDS", 0.1)
    lock = hold(tmp_path / "rljob-a")
    with pytest.raises(Held, match="rljob-a is held by another process"):
        hold(tmp_path / "rljob-a")
    os.close(lock)
    os.close(hold(tmp_path / "rljob-a"))


def test_a_scratch_folder_is_empty_private_and_goes(tmp_path: Path) -> None:
    (tmp_path / "rljob-mine" / "left").mkdir(parents=True)
    (tmp_path / "rljob-mine" / "socket").touch()
    mine = Scratch(tmp_path / "rljob-mine")
    assert names(mine.path) == [".owner"]
    assert sweep(tmp_path) == []
    mine.close()
    assert names(tmp_path) == []
    mine.close()


def test_folders_are_taken_and_swept_at_the_same_time(tmp_path: Path) -> None:
    """Who has a folder keeps it, however many sweep; and nobody is turned away because of a sweep."""
    ends, done = time.monotonic() + 2.0, threading.Event()

    def sweeping() -> None:
        while not done.is_set():
            sweep(tmp_path)

    threads = [threading.Thread(target=sweeping) for _ in range(2)]
    for thread in threads:
        thread.start()
    count = 0
    try:
        while time.monotonic() < ends or count <= 20:
            lock = hold(tmp_path / "rljob-a")
            (tmp_path / "rljob-a" / "weights").write_text("mine")
            time.sleep(0.001)
            assert (tmp_path / "rljob-a" / "weights").read_text() == "mine"
            os.close(lock)
            count += 1
    finally:
        done.set()
    for thread in threads:
        thread.join()
