"""The folder of a job's checkpoints: `step_N` for each, and `latest`, which names the newest.

Guarantees: `step_N` exists only once it is whole and on the disk; whatever moment the writer is killed at,
`newest` finds a whole checkpoint if there ever was one; the newest `keep` stay.
"""

import errno
import os
import re
import shutil
from pathlib import Path

import msgspec


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message says why, and what to do."""


class CheckpointUnreadable(CheckpointError):
    """A checkpoint is there and cannot be loaded as it is."""


LATEST = "latest"
_PARTIAL = ".tmp"
_EXTRA = "extra.bin"
_HEAD = "trainer.msgpack"
_FORMAT = 2
_NAME = re.compile(r"step_(\d+)")
_CURES = {
    os.strerror(code): what
    for codes, what in (
        ((errno.EROFS,), "mount it for writing"),
        ((errno.EACCES, errno.EPERM), "let this user write there"),
        ((errno.EIO, errno.ESTALE), "look at the disk, which fails"),
    )
    for code in codes
}
"""What a person can do, by the system's message for a file that could not be written."""
_UNREAD = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "; let this user read the folder and what is in it"),
    **dict.fromkeys((errno.EIO, errno.ESTALE), "; look at the disk, which fails"),
}
"""What a person can do about a file that could not be read and may be as it should."""


class Head(msgspec.Struct):
    """The part of a checkpoint that is read before its tensors."""

    updates: int
    """Optimizer updates done."""
    format: int = _FORMAT


def newest(root: Path) -> Path | None:
    """The newest whole checkpoint in `root`; None where there is none. Raises `CheckpointError` where
    `latest` is there and names none."""
    pointer = root / LATEST
    try:
        named = pointer.read_bytes().strip().decode()
    except FileNotFoundError:
        return _highest(root)
    except OSError as error:
        # The pointer itself may be right, and what is beside it as hard to read.
        advice = _UNREAD.get(error.errno or 0) or _without_pointer(root)
        raise CheckpointError(f"{pointer} cannot be read: {reason(error)}{advice}") from error
    except UnicodeDecodeError:
        named = ""
    # One of another folder may be of another run.
    if not _NAME.fullmatch(named):
        raise CheckpointError(
            f"{pointer} names no checkpoint of its folder, as step_N does{_without_pointer(root)}"
        )
    # What it names may be gone: the writer was killed while another folder took its place, or somebody
    # removed it.
    folder = root / named
    return folder if folder.is_dir() else _highest(root)


def _highest(root: Path) -> Path | None:
    return max(_whole(root), key=step_of, default=None)


def _without_pointer(root: Path) -> str:
    """What a person can do about a `latest` that is of no use."""
    highest = _highest(root)
    if highest is None:
        return "; remove it: there is no checkpoint beside it"
    return f"; remove it to go on from {highest.name}, or write the name of another step into it"


def step_of(folder: Path) -> int:
    """Steps done when the checkpoint was written."""
    match = _NAME.fullmatch(folder.name)
    if match is None:
        raise ValueError(f"{folder} is not a checkpoint: its name is not step_N")
    return int(match[1])


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint of `step` steps is, once it is whole."""
    return root / f"step_{step}"


def steps(root: Path) -> list[int]:
    """The steps of all whole checkpoints in `root`, ascending."""
    return sorted(map(step_of, _whole(root)))


def write_head(partial: Path, head: Head, extra: bytes) -> None:
    """Write what is not tensors: the head, and the driver's `extra`."""
    (partial / _EXTRA).write_bytes(extra)
    (partial / _HEAD).write_bytes(msgspec.msgpack.encode(head))


def read_head(folder: Path) -> tuple[Head, bytes]:
    """The head and the driver's `extra`. Raises `CheckpointError`."""
    try:
        head = msgspec.msgpack.decode((folder / _HEAD).read_bytes(), type=Head)
        extra = (folder / _EXTRA).read_bytes()
    except (OSError, msgspec.DecodeError) as error:
        raise damaged(folder, error) from error
    if head.format != _FORMAT:
        raise CheckpointUnreadable(
            f"{folder} has format {head.format}, this version of rljob reads {_FORMAT}"
        )
    return head, extra


def damaged(folder: Path, error: BaseException) -> CheckpointUnreadable:
    """The error to raise for a checkpoint that cannot be read because of `error`."""
    return CheckpointUnreadable(
        f"{folder} cannot be loaded ({reason(error)}): it is damaged, or of another model: take the model "
        "that the run began with (training.model), or remove this folder to go on from the checkpoint before "
        "it"
    )


def reason(error: BaseException) -> str:
    """An error in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return text.removesuffix(": ")


def cure(why: str) -> str:
    """What to do about a file that could not be written, from the `reason`. A reason that does not tell is
    most often a full disk: torch's writers do not pass on what the system said."""
    return _CURES.get(why, "make room")


def begin(root: Path, step: int) -> Path:
    """A new, empty folder to write the checkpoint of `step` into. Removes what interrupted writers left."""
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(f"step_*{_PARTIAL}"):
        shutil.rmtree(leftover)
    partial = root / f"step_{step}{_PARTIAL}"
    partial.mkdir()
    return partial


def finish(partial: Path, keep: int) -> Path:
    """Make a written folder the newest checkpoint; remove those above `keep`. Returns its final name."""
    root = partial.parent
    # The content is on the disk before the folder has its name: after a crash of the machine a rename may be
    # there and the data not.
    all_to_disk(partial)
    folder = root / partial.name.removesuffix(_PARTIAL)
    if folder.exists():
        # The same step trained again from an earlier checkpoint: the new one takes its place.
        folder.rename(folder.with_name(f"{folder.name}.old{_PARTIAL}"))
    partial.rename(folder)
    pointer = root / f"{LATEST}{_PARTIAL}"
    pointer.write_text(f"{folder.name}\n")
    _to_disk(pointer)
    pointer.replace(root / LATEST)
    _to_disk(root)
    for leftover in root.glob(f"step_*.old{_PARTIAL}"):
        shutil.rmtree(leftover)
    others = [path for path in _by_age(root) if path != folder]
    for surplus in others[: max(0, len(others) + 1 - keep)]:
        # Renamed first, so that a kill halfway through does not leave half a checkpoint under its name.
        shutil.rmtree(surplus.rename(surplus.with_name(f"{surplus.name}.old{_PARTIAL}")))
    return folder


def discard(partial: Path) -> None:
    """Remove what was written of a checkpoint that failed."""
    shutil.rmtree(partial, ignore_errors=True)


def sizes(root: Path) -> tuple[list[int], int]:
    """Bytes of each whole checkpoint in `root`, in the order in which they would be removed, and of what
    interrupted writers left, which `begin` removes."""
    whole = [_bytes_in(folder) for folder in _by_age(root)]
    return whole, sum(map(_bytes_in, root.glob(f"step_*{_PARTIAL}")))


def _bytes_in(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _by_age(root: Path) -> list[Path]:
    """The whole checkpoints, the oldest first: by time, as the number does not tell. A job that went back
    writes lower steps after higher ones."""
    return sorted(_whole(root), key=lambda path: path.stat().st_mtime_ns)


def _whole(root: Path) -> list[Path]:
    return [path for path in root.glob("step_*") if _NAME.fullmatch(path.name) and path.is_dir()]


def all_to_disk(folder: Path) -> None:
    """Wait until the folder and all that is in it is on the disk."""
    for path in [*folder.rglob("*"), folder]:
        _to_disk(path)


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
