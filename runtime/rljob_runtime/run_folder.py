"""The folder of a run: whose it is, and what becomes of an earlier run in it.

Guarantees: one process at a time holds a run's folder; a run is never overwritten, and never mixed with
another without `--resume`; files of someone else are never moved.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "job.yaml"
"""Copy of the manifest; its presence marks a folder as a run's."""
_LOCK = ".lock"


class FolderRefused(ValueError):
    """The folder cannot be used; the message says why and what to do."""


class FolderBusy(FolderRefused):
    """Another process holds the folder."""


@dataclass(frozen=True)
class RunOptions:
    """How to run a job; everything else stands in the job itself."""

    folder: Path
    """The run's folder, absolute; it exists and is held by this process."""
    manifest_folder: Path
    """What relative paths in the job are relative to; also where reward modules are looked for."""
    resume: bool
    """Go on from the newest checkpoint in the folder."""
    live: bool
    """Show the live view, where the output is a terminal."""
    share: bool = False
    """Let workers share this machine's accelerators, each taking a part of one."""


@contextmanager
def held(folder: Path, manifest: Path, *, resume: bool, restart: bool) -> Iterator[Path]:
    """Hold a run's folder for the time of the body; yields its absolute path.

    An earlier run in it is kept under folder.1, folder.2, … with `restart`, continued with `resume`, and
    otherwise refused with `FolderRefused`.
    """
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise FolderRefused(f"{folder} is a file; name a folder with --output")
    if restart and holds_run(folder):
        with _locked(folder):
            folder.rename(_free_name(folder))
    elif holds_run(folder) and not resume:
        raise FolderRefused(
            f"{folder} holds a run already: go on with it by --resume, or begin anew by --restart, which "
            f"keeps it as {_free_name(folder).name}"
        )
    elif resume and not holds_run(folder):
        raise FolderRefused(f"{folder} holds no run that --resume could go on with")
    elif folder.is_dir() and not holds_run(folder) and any(item.name != _LOCK for item in folder.iterdir()):
        raise FolderRefused(f"{folder} holds other files; name another folder with --output")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderRefused(
            f"{folder} cannot be made: {error.strerror}; name another with --output"
        ) from error
    with _locked(folder):
        if manifest.resolve() != (folder / MANIFEST).resolve():
            shutil.copyfile(manifest, folder / MANIFEST)
        yield folder


def holds_run(folder: Path) -> bool:
    """Whether a run has been started in the folder."""
    return (folder / MANIFEST).is_file()


def _free_name(folder: Path) -> Path:
    number = 1
    while (moved := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return moved


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderBusy(
                f"another rljob is running in {folder}: wait for it, or name another folder with --output"
            ) from error
        yield
    finally:
        os.close(handle)
