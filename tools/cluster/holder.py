"""The folder of a cluster that was started by hand, and the process that holds it.

Guarantees: a folder that has anything but a cluster in it is never removed; of several processes that start a
cluster in one folder, one does, and the others are told; a pid that another process got since then is none.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.cluster.kubeconfig import private_file

STATE = "holder.json"


class FolderRefused(Exception):
    """The folder is not what a cluster may be started or ended in; the text says why, and what to do."""


@dataclass(frozen=True)
class Holder:
    """A process that holds a cluster."""

    pid: int
    started: str
    """In clock ticks since boot."""
    node: bool = False
    """Whether its cluster has a node."""


def holder(folder: Path) -> Holder | None:
    """The one of the folder, where it runs."""
    try:
        noted = json.loads((folder / STATE).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    found = Holder(**noted) if noted else None
    return found if found is not None and started(found.pid) == found.started else None


def since(folder: Path) -> str:
    """When the holder was started, hours to seconds."""
    return time.strftime("%H:%M:%S", time.localtime((folder / STATE).stat().st_mtime))


def note(folder: Path, pid: int, node: bool) -> None:
    """Make a process that has just been started the folder's holder."""
    private_file(folder / STATE, json.dumps(asdict(Holder(pid, started(pid) or "", node))))


def make(folder: Path) -> None:
    """An empty folder in the place of what an earlier cluster left. Raises `FolderRefused`."""
    remove(folder)
    folder.mkdir(mode=0o700, parents=True)
    # From now on it is a cluster's, whatever becomes of the start.
    private_file(folder / STATE, "null")


def remove(folder: Path) -> None:
    """With all that is in it, if it is a cluster's. Raises `FolderRefused`."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FolderRefused(f"{folder} is a file: name a folder that is empty, or is not there")
    if any(folder.iterdir()) and not (folder / STATE).exists():
        raise FolderRefused(
            f"{folder} has something else in it than a cluster (no {STATE}), and is left as it is: name a "
            "folder that is empty, or is not there"
        )
    shutil.rmtree(folder)


@contextmanager
def starting(folder: Path) -> Iterator[None]:
    """While a cluster is being started in the folder; the kernel ends it with the process. Raises
    `FolderRefused` where another process does the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Of the folder it is in: the folder itself is made anew.
    lock = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _take(lock, folder)
        yield
    finally:
        os.close(lock)


def _take(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderRefused(
            f"another process is starting a cluster in a folder of {folder.parent}: try again when it has"
        ) from None


def started(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None if it does not run."""
    try:
        # Behind the name, which may have blanks and brackets in it: field 3 of proc(5), the state, is first.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]  # a zombie has ended; field 22 is the time of the start
