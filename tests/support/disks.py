"""Small disks, to be filled."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own, mounted at `folder`; skips the test where that cannot be."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        # Lazily: a process that is being ended may still have a file open there.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, left: int) -> Path:
    """Fill the disk so that `left` bytes are free, whoever writes there meanwhile; the file that fills it."""
    ballast, block = disk / "ballast", 65536
    # Unbuffered: what a buffer holds is not on the disk yet, and does not count.
    with ballast.open("wb", buffering=0) as file:
        try:
            while (free := shutil.disk_usage(disk).free - left) > 0:
                file.write(bytes(min(free, block)))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return ballast
