"""What is said of a checkpoint that cannot be written, and of `latest` where it names none."""

import errno
import os
from pathlib import Path

import pytest

from rljob_runtime.trainer.checkpoint import CheckpointError, cure, newest, reason


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "make room"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "make room"),
        (RuntimeError("PytorchStreamWriter failed writing file data/0"), "make room"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), "mount it for writing"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "let this user write there"),
        (PermissionError(errno.EPERM, os.strerror(errno.EPERM)), "let this user write there"),
        (OSError(errno.EIO, os.strerror(errno.EIO)), "look at the disk, which fails"),
        (OSError(errno.ESTALE, os.strerror(errno.ESTALE)), "look at the disk, which fails"),
    ],
)
def test_only_a_full_disk_is_told_as_one(error: Exception, told: str) -> None:
    assert cure(reason(error)) == told


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", b"", b"\0\0\0\0", b"step_two", b"../elsewhere/step_3", b"{elsewhere}/step_3",
     b"./step_2", None],
    ids=["no UTF-8", "empty", "zeros", "no step", "outside", "elsewhere", "a path", "a folder"],
)  # fmt: skip
def test_a_latest_that_names_no_checkpoint_of_its_folder_is_told(
    tmp_path: Path, content: bytes | None
) -> None:
    root, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    for folder in (root / "step_2", root / "step_10", elsewhere / "step_3"):
        folder.mkdir(parents=True)
    if content is None:
        (root / "latest").mkdir()
    else:
        (root / "latest").write_bytes(content.replace(b"{elsewhere}", str(elsewhere).encode()))
    with pytest.raises(CheckpointError) as raised:
        newest(root)
    told = str(raised.value)
    assert told.startswith(f"{root / 'latest'} ") and "\n" not in told
    assert "remove it to go on from step_10" in told


def test_without_a_checkpoint_there_is_none_to_go_on_from(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("")
    with pytest.raises(CheckpointError, match="remove it: there is no checkpoint beside it"):
        newest(tmp_path)


@pytest.mark.parametrize(
    ("error", "advice"),
    [(errno.EACCES, "let this user read the folder"), (errno.EIO, "look at the disk, which fails")],
)
def test_a_latest_that_may_be_as_it_should_is_not_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, advice: str
) -> None:
    """As in a folder that another user's run has written."""

    def read_bytes(path: Path) -> bytes:
        raise OSError(error, os.strerror(error), str(path))

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(CheckpointError, match=advice) as raised:
        newest(tmp_path)
    assert "remove" not in str(raised.value)


def test_a_latest_whose_checkpoint_is_gone_leaves_the_newest_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "step_2").mkdir()
    (tmp_path / "latest").write_text("step_4\n")
    assert newest(tmp_path) == tmp_path / "step_2"
