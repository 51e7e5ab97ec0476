"""One builder of a thing at a time, over all processes of the machine."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds the lock of what is built in `folder`, which is made. The kernel frees it when its holder ends,
    and every step of a build has a deadline."""
    folder.mkdir(parents=True, exist_ok=True)
    # The file stays: removing it would let two processes lock two files of the same name.
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
