"""Folders that a process needs while it lives: in shared memory, and for sockets.

Guarantees: a held folder is its process's own until that releases it or ends, however it ends, for what says
so is a lock that the kernel drops with the process; `sweep` removes what processes that have ended left
behind, and never a folder in which anything is held.
"""

import fcntl
import os
import secrets
import shutil
import tempfile
import threading
import time
from pathlib import Path

PREFIX = "rljob-"
"""All such folders begin with it."""
OWNER = ".owner"
"""File in a held folder; its process holds a lock on it."""
_TURN_SECONDS = 2.0
"""Longer than a sweep holds the lock of a folder that it is about to remove."""
_ENDING_SECONDS = 10.0
"""How long the processes of a killed run may take to end."""


class Held(RuntimeError):
    """Another living process holds the folder."""


class Scratch:
    """A folder of this process, empty at first, that goes when it is closed."""

    def __init__(self, path: Path) -> None:
        """Make the folder; for `sweep` to find it, its name begins with `PREFIX`. Raises `Held` where another
        living process has it, and `OSError`."""
        self.path = path
        self._lock = hold(self.path)
        for leftover in self.path.iterdir():
            if leftover.name != OWNER:
                _remove(leftover)

    def close(self) -> None:
        """Remove the folder with all that is in it; a second call does nothing."""
        if self._lock >= 0:
            discard(self.path)
            os.close(self._lock)
            self._lock = -1


def temporary(kind: str) -> Scratch:
    """A folder in the one for temporary files, with a short path, as sockets need it; what processes that
    have ended left there goes before. Blocking, as `sweep`. Raises `OSError`."""
    parent = Path(tempfile.gettempdir())
    sweep(parent)
    return Scratch(parent / f"{PREFIX}{kind}-{secrets.token_hex(4)}")


def hold(folder: Path) -> int:
    """Make `folder` this process's own, with what is in it; returns the lock, a file descriptor to be closed
    in the end. Raises `Held`, `OSError`."""
    deadline = time.monotonic() + _TURN_SECONDS
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (FileExistsError, FileNotFoundError):
            if folder.is_symlink() or folder.is_file():
                raise
            continue  # it was swept at this moment
        # By now it is held by a sweep, for a moment, or by its owner.
        if not _lock_within(lock, deadline - time.monotonic()):
            os.close(lock)
            raise Held(f"{folder} is held by another process")
        if _is_still(folder / OWNER, lock):
            return lock
        os.close(lock)


def sweep(parent: Path) -> list[Path]:
    """Remove the folders in `parent` whose processes have ended; returns them. Blocking: a killed run whose
    other processes are just ending is waited for."""
    removed = []
    deadline = time.monotonic() + _ENDING_SECONDS
    for folder in sorted(parent.glob(f"{PREFIX}*")):
        try:
            ended = remove_unless_held(folder)
            # Nothing of the folder is held meanwhile: its run may be resumed.
            while isinstance(ended, Path) and _freed_within(ended, deadline - time.monotonic()):
                ended = remove_unless_held(folder)
        except OSError:
            continue  # another user's, or being removed at this moment
        if ended is True:
            removed.append(folder)
    return removed


def remove_unless_held(folder: Path) -> bool | Path:
    """Whether a folder was removed, which some process held once. Where its own process has ended, and one
    that holds a folder inside it has not yet, the `OWNER` file of that. Raises `OSError`."""
    owners = sorted(folder.rglob(OWNER), key=lambda path: len(path.parts))
    locks: list[int] = []
    try:
        for owner in owners:
            locks.append(os.open(owner, os.O_RDWR | os.O_CLOEXEC))
            if not _try_lock(locks[-1]):
                return False if owner.parent == folder or owners[0].parent != folder else owner
            if not _is_still(owner, locks[-1]):
                return False  # another sweep removed the folder, and somebody has made it anew
        if owners:
            discard(folder)
        return bool(owners)
    finally:
        for lock in locks:
            os.close(lock)


def discard(folder: Path) -> None:
    """Remove a folder whose lock this process holds. Under another name first: who is just taking the folder
    makes a new one then, and nothing of that is removed with the old one."""
    removed = folder.with_name(f"{PREFIX}removed-{secrets.token_hex(8)}")
    try:
        folder.rename(removed)
    except FileNotFoundError:
        return
    shutil.rmtree(removed, ignore_errors=True)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_within(lock: int, seconds: float) -> bool:
    """Wait that long at most for a lock; whether it was taken."""
    if _try_lock(lock):
        return True
    if seconds <= 0:
        return False
    # The kernel's wait for a lock has no deadline, so it gets a thread, and a descriptor of its own for the
    # same lock. The thread closes that: a lock that is taken after the deadline is dropped at once.
    waiting, taken = os.dup(lock), threading.Event()

    def wait() -> None:
        try:
            fcntl.flock(waiting, fcntl.LOCK_EX)
            taken.set()
        finally:
            os.close(waiting)

    threading.Thread(target=wait, name="scratch-lock", daemon=True).start()
    return taken.wait(seconds)


def _freed_within(owner: Path, seconds: float) -> bool:
    """Wait that long at most until nobody holds a folder, by its `OWNER` file; whether that is so. Raises
    `OSError`."""
    try:
        lock = os.open(owner, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # its process removed the folder before it ended
    try:
        return _lock_within(lock, seconds)
    finally:
        os.close(lock)


def _is_still(path: Path, lock: int) -> bool:
    """Whether a lock is on the file that is there now, and not on one that was removed meanwhile."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(lock))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
