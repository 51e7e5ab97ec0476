"""What is said of a checkpoint that cannot be written."""

import errno
import os

import pytest

from rljob_runtime.trainer.checkpoint import cure, reason


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
