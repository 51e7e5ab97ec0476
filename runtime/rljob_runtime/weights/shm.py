"""Published weights in shared memory: one immutable folder for each version, `<root>/v{version}`.

Guarantees:
- a folder has its name only once it is whole, and never changes afterwards;
- the newest `keep` published folders stay; an older one goes when nobody reads it (`reading`);
- the store's folder goes when the store is closed or its process exits; what a killed process left in shared
  memory goes when the next run, trainer or engine looks for room there (`choose_root`).
"""

import atexit
import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rljob_runtime.site.scratch import PREFIX, Held, discard, hold, sweep
from rljob_runtime.site.sizes import amounts

_log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
DISK_FOLDER = "weights"
"""In a run's folder, where shared memory is too small."""
_LOCK = ".lock"
_PARTIAL = ".partial"


class WeightsGone(RuntimeError):
    """The folder was removed; a newer version is published."""


class StoreInUse(RuntimeError):
    """Another process publishes there."""


class NoRoom(RuntimeError):
    """The weights do not fit; the message says where and what to do."""


def choose_root(
    run_id: str, run_folder: Path, copies: int, weight_bytes: int, shared: Path | None = None
) -> Path:
    """Where the job's weights go: shared memory, or the run's folder (with a warning) where that cannot be
    written to, or is too small for `copies` of `weight_bytes` each. What killed processes left in shared
    memory is removed first."""
    shared = shared or SHARED_MEMORY
    for left in sweep(shared):
        _log.info("removed %s, which a killed process had left", left)
    obstacle = _obstacle(shared, copies, copies * weight_bytes)
    if obstacle is None:
        return shared / f"{PREFIX}{run_id}"
    disk = run_folder / DISK_FOLDER
    _log.warning("%s: the weights go through %s, which is slower", obstacle, disk)
    return disk


def _obstacle(shared: Path, copies: int, needed: int) -> str | None:
    """Why `copies` of the weights, `needed` bytes together, cannot go to that folder; None where they can."""
    if not shared.is_dir():
        return f"there is no {shared}"
    # Such a mount may still say that it has room.
    if os.statvfs(shared).f_flag & os.ST_RDONLY:
        return f"{shared} is mounted read-only"
    free = shutil.disk_usage(shared).free
    if needed <= free:
        return None
    has, takes = amounts(free, needed)
    return (
        f"{shared} has {has} free, {copies} {'copy' if copies == 1 else 'copies'} of the weights take {takes}"
    )


class WeightStore:
    """The published versions of one job; one process writes to it."""

    def __init__(self, root: Path, keep: int) -> None:
        """Take over `root`, with what an earlier process of the same job published there. `keep`: versions
        that stay. Raises `StoreInUse` where another live process holds it."""
        self.root = root
        self._keep = keep
        try:
            self._owner = hold(root)
        except Held:
            raise StoreInUse(
                f"{root} is in use by another trainer of this run: wait for it, or stop it"
            ) from None
        for path in root.glob(f"*{_PARTIAL}"):
            shutil.rmtree(path)
        # By time, as numbers do not tell: a job that went back to a checkpoint publishes lower ones again.
        self._published = sorted((path for path in root.glob("v*")), key=lambda path: path.stat().st_mtime_ns)
        atexit.register(self.close)

    def publish(self, version: int, write: Callable[[Path], None]) -> Path:
        """Let `write` fill a folder, give it its name and return it; remove what is not kept.

        Raises `NoRoom` where the weights do not fit.
        """
        folder = self._free_name(version)
        partial = folder.with_name(folder.name + _PARTIAL)
        partial.mkdir()
        try:
            write(partial)
            # Readers lock this file, so it is there before the folder has its name.
            (partial / _LOCK).touch(mode=0o600)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise NoRoom(
                    f"no room for the weights of version {version} in {self.root} ({error.strerror}): "
                    "make it larger"
                ) from error
            raise
        # Atomic: engines find the whole folder or none.
        partial.rename(folder)
        self._published.append(folder)
        self._prune()
        return folder

    def drop(self, folder: Path) -> None:
        """Remove a published folder now, unless somebody reads it."""
        if _remove_unread(folder):
            self._published.remove(folder)

    def close(self) -> None:
        """Remove the store's folder; a second call does nothing."""
        atexit.unregister(self.close)
        if self._owner >= 0:
            # Under the lock, so that nobody takes over what is being removed.
            discard(self.root)
            os.close(self._owner)
            self._owner = -1

    def _free_name(self, version: int) -> Path:
        """`v{version}`, or one with a suffix: a version is published again after a restart, while engines
        may still read the earlier folder."""
        folder, again = self.root / f"v{version}", 1
        while folder.exists():
            again += 1
            folder = self.root / f"v{version}-{again}"
        return folder

    def _prune(self) -> None:
        old = self._published[: -self._keep]
        self._published = [path for path in old if not _remove_unread(path)] + self._published[-self._keep :]


@contextmanager
def reading(folder: Path) -> Iterator[Path]:
    """Keep a published folder from being removed for the time of the body. Raises `WeightsGone`."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise WeightsGone(f"{folder} was removed: a newer version is published") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        # Whoever removes the folder holds this lock meanwhile: it may have been waited for.
        if not (folder / _LOCK).exists():
            raise WeightsGone(f"{folder} was removed: a newer version is published")
        yield folder
    finally:
        os.close(lock)


def _remove_unread(folder: Path) -> bool:
    """Remove a published folder unless somebody reads it; whether it is gone."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Under another name first: who waits for the lock then sees that the folder is gone.
        removed = folder.rename(folder.with_name(f"{folder.name}{_PARTIAL}"))
        shutil.rmtree(removed)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
