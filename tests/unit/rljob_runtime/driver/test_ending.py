"""Where a run's checkpoints are found, and the report that is written while the run ends."""

import logging
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.driver.ending import ReportWriter
from rljob_runtime.driver.model_folder import check_checkpoints, place_checkpoints
from rljob_runtime.run_folder import FolderRefused, RunOptions
from rljob_runtime.trainer import checkpoint
from tests.support.jobs import job
from tests.support.runtime.synthetic_run import Job, write_run


def written(root: Path, step: int = 3) -> Path:
    """A checkpoint, as far as its folder tells."""
    partial = checkpoint.begin(root, step)
    return checkpoint.finish(partial, keep=9)


class Folders:
    """A run's folder and one elsewhere that `checkpoint.path` may name."""

    def __init__(self, base: Path) -> None:
        self.run, self.elsewhere = base / "run", base / "elsewhere"
        self.run.mkdir()

    def place(self, resume: bool, path: Path | None) -> None:
        changes: dict[str, Any] = {} if path is None else {"training.checkpoint": {"path": str(path)}}
        options = RunOptions(self.run, self.run.parent, resume=resume, live=False)
        wanted = RLJob.model_validate(job(changes))
        check_checkpoints(wanted, options)
        place_checkpoints(wanted, options)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


class TestCheckpoints:
    def test_in_the_runs_folder_nothing_is_done(self, folders: Folders) -> None:
        folders.place(False, None)
        assert not list(folders.run.iterdir())

    def test_elsewhere_they_are_found_from_the_runs_folder(self, folders: Folders) -> None:
        folders.place(False, folders.elsewhere)
        saved = written(folders.elsewhere)
        found = checkpoint.newest(folders.run / "checkpoints")
        assert found is not None and found.resolve() == saved
        folders.place(True, folders.elsewhere)
        assert checkpoint.newest(folders.run / "checkpoints") == found

    def test_a_new_run_does_not_write_among_those_of_another(self, folders: Folders) -> None:
        written(folders.elsewhere, 12)
        with pytest.raises(FolderRefused, match=r"holds checkpoints of another run, up to step_12: move"):
            folders.place(False, folders.elsewhere)
        assert not list(folders.run.iterdir())

    def test_those_in_a_folder_that_is_moved_aside_are_in_nobodys_way(self, folders: Folders) -> None:
        """A new run takes the place of theirs once it begins; also where they are named otherwise."""
        inside = folders.run / "checkpoints"
        written(inside)
        for path in (None, inside, folders.run.parent / "elsewhere" / ".." / "run" / "checkpoints"):
            changes: dict[str, Any] = {} if path is None else {"training.checkpoint": {"path": str(path)}}
            options = RunOptions(folders.run, folders.run.parent, resume=False, live=False)
            check_checkpoints(RLJob.model_validate(job(changes)), options)
        with pytest.raises(FolderRefused, match="holds checkpoints of another run"):
            outside = folders.run / ".." / "elsewhere"
            written(outside)
            folders.place(False, outside)

    def test_a_latest_that_names_none_is_in_the_way_of_a_resumed_run_alone(self, folders: Folders) -> None:
        written(folders.run / "checkpoints")
        (folders.run / "checkpoints" / "latest").write_bytes(b"\xff")
        folders.place(False, None)
        with pytest.raises(FolderRefused, match=r"names no checkpoint .* remove it to go on from step_3"):
            folders.place(True, None)

    @pytest.mark.parametrize("first", ["inside", "elsewhere"])
    def test_a_resumed_run_is_not_led_to_where_its_checkpoints_are_not(
        self, folders: Folders, tmp_path: Path, first: str
    ) -> None:
        before = None if first == "inside" else folders.elsewhere
        folders.place(False, before)
        saved = written(before or folders.run / "checkpoints")
        with pytest.raises(FolderRefused, match=r"the run's checkpoints are in .*, up to step_3, and"):
            folders.place(True, tmp_path / "third")
        assert saved.is_dir()
        folders.place(True, before)

    def test_moved_checkpoints_are_followed(self, folders: Folders, tmp_path: Path) -> None:
        folders.place(False, None)
        written(folders.run / "checkpoints")
        (folders.run / "checkpoints").rename(folders.elsewhere)
        folders.place(True, folders.elsewhere)
        assert checkpoint.newest(folders.run / "checkpoints") is not None
        folders.elsewhere.rename(tmp_path / "third")
        folders.place(True, tmp_path / "third")
        assert (folders.run / "checkpoints").readlink() == tmp_path / "third"


class TestReport:
    def test_it_is_written_beside_what_else_goes_on(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", Job(steps=4))
        writer = ReportWriter(run)
        writer.start()
        assert writer.finish(60) == run / "report.html"
        assert "Did it learn?" in (run / "report.html").read_text()

    def test_who_cannot_wait_for_it_does_not(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", Job(steps=4))
        early, late = ReportWriter(run), ReportWriter(run)
        early.give_up()
        assert early.finish(60) is None
        late.start()
        assert late._process is not None
        late._process.send_signal(signal.SIGSTOP)  # so that it does not end before
        signalled = threading.Timer(0.05, late.give_up)
        signalled.start()
        assert late.finish(60) is None
        signalled.join()
        assert not (run / "report.html").exists()

    @pytest.mark.parametrize(
        ("there", "seconds", "words"),
        [(True, 0.0, "the report took longer than 0 s; rljob report"), (False, 60.0, "holds no run")],
        ids=["it takes too long", "it cannot be written"],
    )
    def test_a_run_does_not_fail_for_want_of_it(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, there: bool, seconds: float, words: str
    ) -> None:
        run = write_run(tmp_path / "run", Job(steps=4)) if there else tmp_path
        with caplog.at_level(logging.WARNING):
            assert ReportWriter(run).finish(seconds) is None
        assert words in caplog.text
        assert not (run / "report.html").exists()
