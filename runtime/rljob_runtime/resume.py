"""What a job must have in common with the run that it goes on with, looked at before anything is started."""

from pathlib import Path

import msgspec

from rljob_runtime.data.errors import DataError
from rljob_runtime.data.fingerprint import DataFingerprint, difference
from rljob_runtime.trainer.checkpoint import damaged, newest, read_head
from rljob_runtime.training_loop import JobState


def check_resume(checkpoints: Path, data: DataFingerprint) -> None:
    """Raise `DataError` where the newest checkpoint in `checkpoints` was written with other data, and
    `CheckpointError` where it cannot be read; without a checkpoint anything goes."""
    folder = newest(checkpoints)
    if folder is None:
        return
    _, extra = read_head(folder)
    try:
        state = msgspec.msgpack.decode(extra, type=JobState)
    except msgspec.DecodeError as error:
        raise damaged(folder, error) from error
    why = difference(state.data, data)
    if why is not None:
        raise DataError(why)
