"""The job's initial model on a machine that may not share the driver's storage.

Guarantees: a folder that is there and has the same files (by name, size and time of writing) is used as it
is; otherwise it is fetched from the driver once for all processes of the machine, with checksums.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import msgspec

from rljob_runtime.net.auth import Endpoint
from rljob_runtime.net.keys import ClientSide, client_keys
from rljob_runtime.weights.contents import folder_files
from rljob_runtime.weights.tcp_fetch import FolderClient

MODEL = "model"
"""Name under which the driver's server gives the model's folder."""


class ModelSource(msgspec.Struct, frozen=True):
    """Where the model is to be had."""

    folder: str
    """Its folder, as the driver sees it."""
    copy: str
    """Name of this machine's copy in its temporary folder."""
    endpoint: Endpoint
    """Address of the driver's server."""
    keys: ClientSide


def local_copy(source: ModelSource) -> Path:
    """The model's folder on this machine. Blocking. Raises `WeightsGone`, `Damaged`, `OSError`."""
    with FolderClient(source.endpoint, client_keys(source.keys)) as client:
        files = client.describe(MODEL, checksums=False)
        shared = Path(source.folder)
        if shared.is_dir() and folder_files(shared, checksums=False) == files:
            return shared
        copy = Path(tempfile.gettempdir()) / source.copy
        copy.parent.mkdir(parents=True, exist_ok=True)
        # O_NOFOLLOW, since others may write to the temporary folder: a link put there is not followed.
        lock = os.open(
            copy.with_name(f"{copy.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            # The other processes of this machine wait for the first one's copy.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not copy.is_dir() or folder_files(copy, checksums=False) != files:
                partial = copy.with_name(f"{copy.name}.partial")
                for leftover in (partial, copy):
                    shutil.rmtree(leftover, ignore_errors=True)
                partial.mkdir(mode=0o700)
                client.fetch(MODEL, partial)
                # Only a whole copy has its name, whenever this process is killed.
                partial.rename(copy)
        finally:
            os.close(lock)
    return copy
