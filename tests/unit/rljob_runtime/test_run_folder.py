"""The folder of a run: who may use it, and what becomes of an earlier run in it."""

import errno
import fcntl
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from rljob_runtime.run_folder import (
    Begin,
    Decision,
    FolderFailed,
    FolderRefused,
    Found,
    decide,
    find,
    held,
    holds_run,
    look,
    mark_finished,
)

_FRESH, _ON, _ASIDE, _NO = Decision.FRESH, Decision.GO_ON, Decision.MOVE_ASIDE, Decision.REFUSE
DECISIONS = {
    #                  NEW     RESUME RESTART AUTO_RESUME
    Found.NOTHING:     (_FRESH, _NO, _FRESH, _FRESH),
    Found.FILE:        (_NO, _NO, _NO, _NO),
    Found.OTHER_FILES: (_NO, _NO, _NO, _NO),
    Found.UNFINISHED:  (_NO, _ON, _ASIDE, _ON),
    Found.FINISHED:    (_NO, _ON, _ASIDE, _ASIDE),
}  # fmt: skip


@pytest.mark.parametrize("found", Found)
def test_what_is_done_with_what_is_found(found: Found) -> None:
    begins = (Begin.NEW, Begin.RESUME, Begin.RESTART, Begin.AUTO_RESUME)
    assert tuple(decide(begin, found) for begin in begins) == DECISIONS[found]


@pytest.mark.parametrize("begin", Begin)
def test_a_look_refuses_what_a_hold_would_and_leaves_everything_as_it_is(
    tmp_path: Path, begin: Begin
) -> None:
    manifest, run = write(tmp_path / "job.yaml"), tmp_path / "run"
    for _ in range(2):
        before = sorted(tmp_path.rglob("*"))
        refused = decide(begin, find(run)) is Decision.REFUSE
        with pytest.raises(FolderRefused) if refused else nullcontext():
            look(run, begin)
        assert sorted(tmp_path.rglob("*")) == before
        with held(run, manifest.read_bytes(), Begin.AUTO_RESUME) as found, pytest.raises(FolderRefused):
            found.begin()
            look(run, begin)


def test_an_interrupted_run_goes_on_and_a_finished_one_begins_anew(tmp_path: Path) -> None:
    manifest, run = write(tmp_path / "job.yaml"), tmp_path / "run"
    seen = []
    for finish in (False, False, True, False, False):
        with held(run, manifest.read_bytes(), Begin.AUTO_RESUME) as found:
            seen.append(found.resumes)
            found.begin()
            assert find(run) is Found.UNFINISHED, "whatever it was before"
            if finish:
                mark_finished(run)
    assert seen == [False, True, True, False, True]
    assert find(tmp_path / "run.1") is Found.FINISHED
    assert not (tmp_path / "run.2").exists()


def test_a_finished_run_that_is_resumed_is_unfinished_until_it_ends(tmp_path: Path) -> None:
    manifest, run = write(tmp_path / "job.yaml"), tmp_path / "run"
    begun(run, manifest)
    mark_finished(run)
    begun(run, manifest, Begin.RESUME)
    with held(run, manifest.read_bytes(), Begin.AUTO_RESUME) as found:
        assert found.resumes


@pytest.mark.parametrize("begin", [Begin.RESUME, Begin.RESTART, Begin.AUTO_RESUME])
@pytest.mark.parametrize("finished", [True, False])
def test_until_the_job_begins_an_earlier_run_stays_as_it_is(
    tmp_path: Path, begin: Begin, finished: bool
) -> None:
    """Also beside it: nothing is moved. Afterwards the folder is the job's."""
    manifest, run = write(tmp_path / "job.yaml"), tmp_path / "run"
    begun(run, manifest)
    (run / "metrics.jsonl").write_text("{}")
    if finished:
        mark_finished(run)
    manifest.write_text("kind: RLJob\n# changed\n")
    before = content(tmp_path)
    with held(run, manifest.read_bytes(), begin):
        assert content(tmp_path) == before
    assert content(tmp_path) == before
    begun(run, manifest, begin)
    assert (run / "job.yaml").read_text() == manifest.read_text()
    assert find(run) is Found.UNFINISHED
    if decide(begin, Found.FINISHED if finished else Found.UNFINISHED) is Decision.MOVE_ASIDE:
        kept = {name.removeprefix("run/"): each for name, each in before.items() if name != "job.yaml"}
        assert content(tmp_path / "run.1") == kept
        assert not (run / "metrics.jsonl").exists()


def test_a_new_run_that_was_refused_leaves_nothing_in_the_way_of_the_next(tmp_path: Path) -> None:
    manifest, run = write(tmp_path / "job.yaml"), tmp_path / "run"
    with held(run, manifest.read_bytes(), Begin.NEW):
        (run / "driver.log").write_text("refused\n")
    assert find(run) is Found.NOTHING
    begun(run, manifest)
    assert (run / "driver.log").read_text() == "refused\n"


def test_where_the_manifest_cannot_be_written_the_run_is_as_finished_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, run = write(tmp_path / "job.yaml"), tmp_path / "run"
    begun(run, manifest)
    mark_finished(run)
    manifest.write_text("kind: RLJob\n# changed\n")
    before = content(run)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with held(run, manifest.read_bytes(), Begin.RESUME) as found:
        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(FolderFailed, match="No space left"):
            found.begin()
    assert content(run) == before


def test_a_restart_by_the_manifest_in_the_folder_itself(tmp_path: Path) -> None:
    run = tmp_path / "run"
    begun(run, write(tmp_path / "job.yaml"))
    with held(run, (run / "job.yaml").read_bytes(), Begin.RESTART) as found:
        found.begin()
        assert (run / "job.yaml").read_text() == (tmp_path / "run.1" / "job.yaml").read_text()


def test_a_new_folder_holds_the_manifest(tmp_path):
    path = write(tmp_path / "job.yaml")
    with held(tmp_path / "a" / "b", path.read_bytes(), Begin.NEW) as found:
        assert found.folder == tmp_path / "a" / "b"
        found.begin()
        assert (found.folder / "job.yaml").read_text() == path.read_text()


def test_restart_keeps_earlier_runs(tmp_path):
    path = write(tmp_path / "job.yaml")
    for number in range(3):
        with held(tmp_path / "run", path.read_bytes(), Begin.RESTART) as found:
            found.begin()
            assert not (found.folder / "mark").exists()
            (found.folder / "mark").write_text(str(number))
    kept = {item.parent.name: item.read_text() for item in tmp_path.glob("*/mark")}
    assert kept == {"run.1": "0", "run.2": "1", "run": "2"}


def test_resume_goes_on_in_the_folder(tmp_path):
    path = write(tmp_path / "job.yaml")
    folder = begun(tmp_path / "run", path)
    (folder / "mark").write_text("")
    path.write_text(path.read_text() + "# changed\n")
    with held(folder, path.read_bytes(), Begin.RESUME) as found:
        found.begin()
        assert (folder / "mark").exists()
        assert "# changed" in (folder / "job.yaml").read_text()


def test_resume_from_the_folders_own_manifest(tmp_path):
    folder = begun(tmp_path / "run", write(tmp_path / "job.yaml"))
    before = (folder / "job.yaml").read_text()
    with held(folder, (folder / "job.yaml").read_bytes(), Begin.RESUME) as found:
        found.begin()
        assert (folder / "job.yaml").read_text() == before


@pytest.mark.parametrize(
    ("content", "begin", "words"),
    [
        ("nothing", Begin.RESUME, "holds no run that --resume could go on with"),
        ("a file", Begin.NEW, "is a file; name a folder with --output"),
        ("other files", Begin.NEW, "holds other files"),
        ("other files", Begin.RESTART, "holds other files"),
        ("other files", Begin.RESUME, "holds no run"),
        ("other files", Begin.AUTO_RESUME, "holds other files"),
        ("a file", Begin.AUTO_RESUME, "is a file"),
    ],
)
def test_refusals_change_nothing(tmp_path, content, begin, words):
    folder = tmp_path / "run"
    if content == "a file":
        folder.write_text("")
    elif content == "other files":
        folder.mkdir()
        (folder / "thesis.tex").write_text("")
    before = sorted(tmp_path.rglob("*"))
    manifest = write(tmp_path / "job.yaml")
    with (
        pytest.raises(FolderRefused, match=words),
        held(folder, manifest.read_bytes(), begin),
    ):
        pytest.fail("the folder was given out")
    assert sorted(tmp_path.rglob("*")) == sorted([*before, manifest])


def test_a_path_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """As of a disk whose names are in another encoding: the job would fail on it after its begin."""
    folder = tmp_path / os.fsdecode(b"r\xe9sultats") / "run"
    with pytest.raises(FolderRefused, match="its path is not UTF-8 text"), held(folder, b"", Begin.NEW):
        pytest.fail("the folder was given out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("begin", [Begin.RESUME, Begin.RESTART, Begin.AUTO_RESUME])
def test_one_process_at_a_time(tmp_path, begin):
    manifest = write(tmp_path / "job.yaml")
    with held(tmp_path / "run", manifest.read_bytes(), Begin.NEW) as found:
        found.begin()
        folder = found.folder
        with (
            pytest.raises(FolderRefused, match="another rljob is running"),
            held(folder, manifest.read_bytes(), begin),
        ):
            pytest.fail("the folder was given out twice")
        assert holds_run(folder)
    lock = os.open(folder / ".lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)


@pytest.mark.parametrize("begin", Begin)
def test_a_folder_that_cannot_be_written_is_refused_with_the_reason(tmp_path: Path, begin: Begin) -> None:
    """A folder stands where the lock would be made: that stops root too, like a read-only mount."""
    run, manifest = tmp_path / "run", write(tmp_path / "manifest.yaml")
    (run / ".lock").mkdir(parents=True)
    if begin is not Begin.NEW:
        write(run / "job.yaml")
    words = r"run cannot be used: Is a directory; name another with --output"
    with pytest.raises(FolderRefused, match=words), held(run, manifest.read_bytes(), begin):
        pytest.fail("the folder was given out")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EROFS, FolderRefused),
        (errno.EACCES, FolderRefused),
        (errno.ENOTDIR, FolderRefused),
        (errno.ENOSPC, FolderFailed),
        (errno.EDQUOT, FolderFailed),
        (errno.EIO, FolderFailed),
        (errno.ESTALE, FolderFailed),
    ],
)
def test_what_may_pass_is_told_apart_from_what_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[FolderRefused]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    manifest = write(tmp_path / "job.yaml")
    monkeypatch.setattr(Path, "mkdir", refuse)
    with (
        pytest.raises(FolderRefused, match=os.strerror(code)) as caught,
        held(tmp_path / "run", manifest.read_bytes(), Begin.NEW),
    ):
        pytest.fail("the folder was given out")
    assert type(caught.value) is kind


def test_an_error_of_the_run_itself_is_not_one_of_its_folder(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), held(tmp_path / "run", b"", Begin.NEW):
        raise PermissionError("the run's own")


def begun(run: Path, manifest: Path, begin: Begin = Begin.NEW) -> Path:
    """The folder of a run that has begun, and has ended."""
    with held(run, manifest.read_bytes(), begin) as found:
        found.begin()
    return run


def content(folder: Path) -> dict[str, bytes]:
    """Every file in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write(path: Path) -> Path:
    path.write_text("kind: RLJob\n")
    return path


@pytest.mark.parametrize("begin", Begin)
def test_a_folder_with_a_manifest_of_its_own_is_no_run(tmp_path: Path, begin: Begin) -> None:
    """The job's own folder, named by --output: it was moved aside, with the model and the data in it."""
    manifest = write(tmp_path / "job.yaml")
    (tmp_path / "model").mkdir()
    words = "holds (other files; name another folder|no run that --resume could go on with)"
    with pytest.raises(FolderRefused, match=words):
        look(tmp_path, begin)
    with pytest.raises(FolderRefused, match=words), held(tmp_path, manifest.read_bytes(), begin):
        pytest.fail("the folder was given out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml", "model"]


@pytest.mark.parametrize("left", [".lock", "driver.log", "finished", "checkpoints"])
def test_a_copy_of_a_run_is_one_without_its_hidden_files(tmp_path: Path, left: str) -> None:
    write(tmp_path / "job.yaml")
    (tmp_path / left).mkdir() if left == "checkpoints" else (tmp_path / left).touch()
    assert find(tmp_path) is (Found.FINISHED if left == "finished" else Found.UNFINISHED)


@pytest.mark.parametrize("target", ["nowhere", "run"])
@pytest.mark.parametrize("below", ["", "below/it"])
def test_a_link_that_leads_nowhere_is_told_as_such(tmp_path: Path, target: str, below: str) -> None:
    """As to a disk that is not mounted."""
    (tmp_path / "run").symlink_to(target)
    with pytest.raises(
        FolderRefused, match=rf"run is a link to {target}, which is not there; make"
    ) as caught:
        look(tmp_path / "run" / below, Begin.NEW)
    assert not isinstance(caught.value, FolderFailed), "trying again would not help"
