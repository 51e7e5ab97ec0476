"""What the process of an actor tells its log: our own lines from INFO, of others the warnings, and whatever
its libraries and the processes that it starts write.

Guarantees: on one machine each engine and each rank has a file of its own in the run's folder; in a cluster
the log is the container's, as everything there goes to standard error. A file is appended to, so that another
process can keep it short.
"""

import logging
import os
import sys
from pathlib import Path

LOGS_FOLDER = "logs"
"""In the folder of a run on one machine."""
_OURS = "rljob_runtime"
_LAST_BYTES = 16 << 10


def log_file(folder: Path, worker: str) -> Path:
    """The log of a worker ("fast-0", "trainer-0") of the run in `folder`."""
    return folder / LOGS_FOLDER / f"{worker}.log"


def logs_in(folder: Path) -> list[Path]:
    """The logs that workers of the run in `folder` have begun."""
    return sorted((folder / LOGS_FOLDER).glob("*.log"))


def begin(file: Path | None = None) -> None:
    """Log from here on; a second call does nothing. `file`: where all that this process, and those that it
    starts, write to standard output and error goes; None: they stay as they are."""
    ours = logging.getLogger(_OURS)
    if any(handler.get_name() == _OURS for handler in ours.handlers):
        return
    if file is not None:
        _write_to(file)
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(_OURS)
    handler.setFormatter(logging.Formatter("%(asctime)s  %(levelname)s %(message)s", "%H:%M:%S"))
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)


def last_lines(file: Path) -> list[str]:
    """The lines that a log ends with, of which the first may be a part; none where there is no log."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - _LAST_BYTES))
            return opened.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def _write_to(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    # By their numbers: what is written without Python, and by processes that are started, goes there too.
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
