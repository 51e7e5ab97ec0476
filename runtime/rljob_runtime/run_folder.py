"""The folder of a run: whose it is, and what becomes of an earlier run in it.

Guarantees: one process at a time holds a run's folder; a run is never overwritten, and never mixed with
another unless a resume is asked for; files of someone else are never moved; until a job begins in a folder
that holds a run, all of that run stays as it is.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

MANIFEST = "job.yaml"
"""Copy of the manifest, in each folder of a run."""
INITIAL_MODEL = "initial_model"
"""Folder of the model that a run begins with, where that is a random one."""
_FINISHED = "finished"
"""An empty file: the job has done all its steps. It is taken away when the run is resumed."""
_LOCK = ".lock"
"""Locked by flock while a process holds the folder; the kernel unlocks it when the process ends."""
LOG = "driver.log"
"""What the driver logs."""
_OF_NO_RUN = {_LOCK, LOG}
"""Files that a job leaves which was refused before it began: nothing that somebody could miss."""
_OF_A_RUN = {_LOCK, LOG, _FINISHED, "checkpoints"}
"""One of them at least is in each folder of a run, also where a copy of it lacks hidden files. A person's own
folder may have a job.yaml too, with the model and the data beside it."""
_LASTING = {
    errno.EACCES,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
"""Errors that the same command would only meet again."""


class FolderRefused(ValueError):
    """The folder cannot be used; the message says why and what to do."""


class FolderBusy(FolderRefused):
    """Another process holds the folder."""


class FolderFailed(FolderRefused):
    """The disk failed, or is full; the folder may be usable later."""


class Begin(Enum):
    """How `rljob run` treats an earlier run in its folder; the value is the flag that asks for it."""

    NEW = "no flag"
    """Begin a run; refuse a folder that holds one."""
    RESUME = "--resume"
    """Go on from the newest checkpoint of the folder's run; refuse a folder without one."""
    RESTART = "--restart"
    """Begin a run; rename a folder that holds one."""
    AUTO_RESUME = "--auto-resume"
    """As RESUME where the folder holds an unfinished run, otherwise as RESTART."""


class Found(Enum):
    """What is at a folder's path."""

    NOTHING = "nothing, or a folder with what a refused job leaves alone"
    FILE = "a file"
    OTHER_FILES = "files of someone else"
    UNFINISHED = "a run that was interrupted, failed, or is under way"
    FINISHED = "a run that has done all its steps"


class Decision(Enum):
    """What is done with the folder."""

    FRESH = "a new run begins in it"
    GO_ON = "the run in it goes on"
    MOVE_ASIDE = "it is renamed, and a new run begins in a new folder"
    REFUSE = "nothing"


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
    begin: Callable[[], None] = lambda: None
    """Makes the folder that of this job. To be called once, when nothing is left that could be refused
    without starting a part of the job, and before anything but logs is written there. Raises
    `FolderRefused`."""
    share: bool = False
    """Let workers share this machine's accelerators, each taking a part of one."""
    program: str = "rljob"
    """`rljob` as a person at this machine would type it."""
    reward_host: Path | None = None
    """Socket of the host that starts the reward workers (`rewards/host.py`); None: the driver does."""
    resume_command: str | None = None
    """The command that goes on with the run, to be pasted into a shell; None where nobody types one."""
    model_made: Callable[[], None] | None = None
    """Waits for the process that makes the initial model, after `begin`; None where there is none. Where the
    model is not there afterwards the driver makes it."""


def decide(begin: Begin, found: Found) -> Decision:
    """What is done with a folder, from what was asked for and what is in it. Pure."""
    if found is Found.NOTHING:
        return Decision.REFUSE if begin is Begin.RESUME else Decision.FRESH
    if found not in (Found.UNFINISHED, Found.FINISHED) or begin is Begin.NEW:
        return Decision.REFUSE
    if begin is Begin.RESTART or (begin is Begin.AUTO_RESUME and found is Found.FINISHED):
        return Decision.MOVE_ASIDE
    return Decision.GO_ON


def look(folder: Path, begin: Begin) -> Decision:
    """What `held` would do now. Raises `FolderRefused` where that would, as far as it is known without
    writing anything."""
    folder = folder.absolute()
    decision = _decided(folder, begin)
    if (folder / _LOCK).exists():
        with _writing(folder), _locked(folder):
            pass
    return decision


class Held:
    """A run's folder that this process holds, for a job that has not begun in it yet."""

    def __init__(self, folder: Path, decision: Decision, manifest: bytes, lock: ExitStack) -> None:
        """`manifest`: the job's, as it is copied; `lock` has the folder's, and is left by who made it."""
        self.folder = folder
        """Absolute."""
        self._decision = decision
        self._manifest = manifest
        self._lock = lock

    @property
    def resumes(self) -> bool:
        """Whether the run in it goes on."""
        return self._decision is Decision.GO_ON

    def begin(self) -> None:
        """Make it the folder of the job, which begins: an earlier run is moved aside where that was decided,
        and is kept as folder.1, folder.2, …; what is there then holds the job's manifest, and is not
        finished. Raises `FolderRefused`."""
        folder = self.folder
        with _writing(folder):
            if self._decision is Decision.MOVE_ASIDE:
                # Under its lock: a run that is under way is not moved.
                folder.rename(_free_name(folder))
                self._lock.close()
                folder.mkdir()
                self._lock.enter_context(_locked(folder))
            _replace(folder / MANIFEST, self._manifest)
            # Last: where the disk is full, the run is as finished as it was.
            (folder / _FINISHED).unlink(missing_ok=True)


@contextmanager
def held(folder: Path, manifest: bytes, begin: Begin) -> Iterator[Held]:
    """Hold a run's folder for the time of the body, for the job with this manifest. Nothing is written there
    but the lock, until the job begins by `Held.begin`. Raises `FolderRefused`."""
    folder = folder.absolute()
    decision = _decided(folder, begin)
    with ExitStack() as lock:
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock.enter_context(_locked(folder))
        yield Held(folder, decision, manifest, lock)


def _decided(folder: Path, begin: Begin) -> Decision:
    with _writing(folder):
        _check_name(folder)
        _check_links(folder)
        found = find(folder)
    decision = decide(begin, found)
    if decision is Decision.REFUSE:
        raise FolderRefused(_why(begin, found, folder))
    return decision


def _check_name(folder: Path) -> None:
    """The model's libraries and messages to other processes have paths as text."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise FolderRefused(
            f"{folder} cannot be used: its path is not UTF-8 text; name another folder with --output"
        ) from None


def _check_links(folder: Path) -> None:
    """Making the folder would say that it is there."""
    for path in (folder, *folder.parents):
        if path.is_symlink() and not path.exists():
            raise FolderRefused(
                f"{folder} cannot be used: {path} is a link to {path.readlink()}, which is not there; make "
                "that, or name another folder with --output"
            )


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Errors of the system in the body become `FolderRefused`, or `FolderFailed` where they may pass."""
    try:
        yield
    except OSError as error:
        kind = FolderRefused if error.errno in _LASTING else FolderFailed
        raise kind(f"{folder} cannot be used: {error.strerror}; name another with --output") from error


def find(folder: Path) -> Found:
    """What is at the folder's path."""
    if holds_run(folder) and any((folder / name).exists() for name in _OF_A_RUN):
        return Found.FINISHED if (folder / _FINISHED).exists() else Found.UNFINISHED
    if not folder.exists():
        return Found.NOTHING
    if not folder.is_dir():
        return Found.FILE
    others = any(item.name not in _OF_NO_RUN for item in folder.iterdir())
    return Found.OTHER_FILES if others else Found.NOTHING


def mark_finished(folder: Path) -> None:
    """Record that the run in the folder has done all its steps."""
    (folder / _FINISHED).touch()


def holds_run(folder: Path) -> bool:
    """Whether a run has been started in the folder."""
    return (folder / MANIFEST).is_file()


def _why(begin: Begin, found: Found, folder: Path) -> str:
    """Why the folder cannot be used, and what to do."""
    if found is Found.FILE:
        return f"{folder} is a file; name a folder with --output"
    if begin is Begin.RESUME:
        return f"{folder} holds no run that --resume could go on with"
    if found is Found.OTHER_FILES:
        return f"{folder} holds other files; name another folder with --output"
    return (
        f"{folder} holds a run already: go on with it by --resume, or begin anew by --restart, which "
        f"keeps it as {_free_name(folder).name}"
    )


def _replace(path: Path, content: bytes) -> None:
    """Give a file this content, or leave it as it is where that fails."""
    if path.is_file() and path.read_bytes() == content:
        return
    partial = path.with_name(f"{path.name}.tmp")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _free_name(folder: Path) -> Path:
    number = 1
    while (moved := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return moved


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    # Not inherited: a child that outlives this process would keep the lock.
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
