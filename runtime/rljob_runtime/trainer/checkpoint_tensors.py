"""What a checkpoint holds: model (its adapter alone, where it has one), optimizer, schedule, random
generators, and what the driver adds.

Guarantees: a checkpoint is whole or absent (`trainer.checkpoint`); one that could not be written leaves the
earlier ones as they were and raises `CheckpointError` on every rank; any number of ranks can load it.

Tensors are in torch.distributed.checkpoint's format, sharded; the rest is msgpack.
"""

import errno
import pickle
import random
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from rljob_runtime.devices import Devices
from rljob_runtime.trainer import checkpoint
from rljob_runtime.trainer.checkpoint import CheckpointError, Head
from rljob_runtime.trainer.optim import ScheduledAdamW

_POLICY = "model"
_OPTIMIZER = "optimizer"
_UNPICKLING = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError),
    *(LookupError, AttributeError, ImportError),
)
"""What `pickle` raises for what is damaged, or of another version of torch."""


class _Generators(msgspec.Struct):
    """Random generators of one rank."""

    python: tuple[int, tuple[int, ...], float | None]
    numpy_keys: bytes
    numpy_rest: tuple[int, int, float]
    torch: bytes
    device: bytes


def save(
    root: Path,
    step: int,
    keep: int,
    model: Any,
    optimizer: ScheduledAdamW,
    devices: Devices,
    extra: bytes,
    adapter: bool = False,
) -> Path:
    """Write the checkpoint of `step` (steps done) below `root`; all ranks together.

    `model` is the Hugging Face module; `extra` is written by rank 0; `adapter`: whether the model has an
    adapter, which is saved alone. Raises `CheckpointError`.
    """
    partial = root / f"step_{step}.tmp"
    rank = dist.get_rank()

    def write() -> None:
        weights, moments = _saved(model, optimizer, adapter)
        save_tensors(
            {_POLICY: weights, _OPTIMIZER: moments},
            storage_writer=FileSystemWriter(partial, sync_files=True),
        )
        _generators_file(partial).write_bytes(msgspec.msgpack.encode(_generators(devices)))
        if rank == 0:
            checkpoint.write_head(partial, Head(optimizer.updates), extra)

    def first(work: Callable[[], Any]) -> Callable[[], Any]:
        return work if rank == 0 else lambda: None

    try:
        # A phase begins on no rank before the one above it is over on all: there is a folder to write into,
        # every rank has written its part, the folder gets its name.
        _together(first(lambda: checkpoint.begin(root, step)))
        _together(write)
        _together(first(lambda: checkpoint.finish(partial, keep)))
    except _Failed as error:
        if rank == 0:
            checkpoint.discard(partial)
        raise CheckpointError(_explain(root, step, str(error))) from error
    return root / f"step_{step}"


def load(
    folder: Path, model: Any, optimizer: ScheduledAdamW, devices: Devices, adapter: bool = False
) -> bytes:
    """Put model, optimizer, schedule and generators where the checkpoint was; returns its `extra`.

    All ranks together; their number may differ from the writer's. `adapter` as in `save`. Raises
    `CheckpointError`.
    """
    head, extra = checkpoint.read_head(folder)
    with _readable(folder):
        weights, moments = _saved(model, optimizer, adapter)
        tensors: dict[str, Any] = {_POLICY: weights, _OPTIMIZER: moments}
        # In place: these tensors say which part of each this rank needs.
        load_tensors(tensors, storage_reader=FileSystemReader(folder))
        generators = _read_generators(_generators_file(folder))
    # The job's settings of today hold, and not those that the checkpoint was written with.
    groups = optimizer.adamw.param_groups
    settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    set_state_dict(
        model,
        optimizer.adamw,
        model_state_dict=tensors[_POLICY],
        optim_state_dict=tensors[_OPTIMIZER],
        # All that was saved was found above; what an adapter is for is not in it.
        options=StateDictOptions(strict=not adapter),
    )
    for group, own in zip(optimizer.adamw.param_groups, settings, strict=True):
        group.update(own)
    optimizer.updates = head.updates
    if generators is not None:
        _set_generators(generators, devices)
    return extra


def _generators_file(folder: Path) -> Path:
    """This rank's."""
    return folder / f"generators_{dist.get_rank()}.msgpack"


def _read_generators(path: Path) -> _Generators | None:
    """None of a rank that the writer did not have: it keeps the generators that its seed gave."""
    return msgspec.msgpack.decode(path.read_bytes(), type=_Generators) if path.exists() else None


def _saved(model: Any, optimizer: ScheduledAdamW, adapter: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model's weights, and the optimizer's state, by name; of a model with an adapter those of the
    adapter alone, which is what is trained: the others are in the model's folder.

    Where there was no update yet, torch makes the moments first, by a step with gradients and learning rate
    0."""
    first = not optimizer.adamw.state
    weights, moments = get_state_dict(model, optimizer.adamw)
    if first:
        # It counts as no update, by whose number the next ones are corrected.
        for state in optimizer.adamw.state.values():
            state["step"].zero_()
    if adapter:
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        weights = {name: tensor for name, tensor in weights.items() if name in trained}
    return weights, moments


def check_whole(folder: Path) -> None:
    """Raise `CheckpointError` where a file of a checkpoint's tensors is not there, or is cut off. None is
    read: of a large one that takes minutes."""
    with _readable(folder):
        places = FileSystemReader(folder).read_metadata().storage_data.values()
        for name, end in _ends(places).items():
            file = folder / name
            if not file.is_file():
                raise FileNotFoundError(errno.ENOENT, f"{name} is not there")
            if file.stat().st_size < end:
                raise OSError(errno.EIO, f"{name} is cut off")


def _ends(places: Iterable[Any]) -> dict[str, int]:
    """How many bytes each file must have at least."""
    ends: dict[str, int] = {}
    for place in places:
        ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    return ends


class TensorLayout(NamedTuple):
    """Size and number format of a saved tensor, known without reading it."""

    size: torch.Size
    dtype: torch.dtype


class SavedPolicy:
    """The policy in a checkpoint, read tensor by tensor, whole, in one process without the others."""

    def __init__(self, folder: Path) -> None:
        """Raises `CheckpointError`."""
        self._folder = folder
        with _readable(folder):
            saved = FileSystemReader(folder).read_metadata().state_dict_metadata
        self.layout = {
            name.removeprefix(f"{_POLICY}."): TensorLayout(each.size, each.properties.dtype)
            for name, each in sorted(saved.items())
            if name.startswith(f"{_POLICY}.") and isinstance(each, TensorStorageMetadata)
        }
        """The layout of each tensor by its name in the model, in ascending order of names."""

    def tensors(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """The tensors of these names. Raises `CheckpointError`."""
        found = {
            f"{_POLICY}.{name}": torch.empty(self.layout[name].size, dtype=self.layout[name].dtype)
            for name in names
        }
        # torch warns that torch.distributed is not set up: this reader is meant for one process.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        with _readable(self._folder):
            load_tensors(found, storage_reader=FileSystemReader(self._folder), no_dist=True)
        return {name.removeprefix(f"{_POLICY}."): tensor for name, tensor in found.items()}


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Errors of the body, which reads the checkpoint, become `CheckpointError`."""
    try:
        yield
    except (OSError, CheckpointException, RuntimeError, msgspec.DecodeError, *_UNPICKLING) as error:
        raise checkpoint.damaged(folder, _root_of(error)) from error


class _Failed(Exception):
    """Some rank failed."""


def _together(work: Callable[[], Any]) -> None:
    """Run `work` on every rank; raises `_Failed` on all of them where it failed on one."""
    reason = ""
    try:
        work()
    except (OSError, CheckpointException) as error:
        reason = checkpoint.reason(_root_of(error))
    failed = torch.tensor([int(bool(reason))])
    dist.all_reduce(failed, op=dist.ReduceOp.MAX)
    if failed.item():
        raise _Failed(reason or "another rank could not write its part")


def _root_of(error: BaseException) -> BaseException:
    """The first rank's error in one of torch.distributed.checkpoint's."""
    if isinstance(error, CheckpointException):
        # By rank, an exception and its traceback.
        return _root_of(next(iter(error.failures.values()))[0])
    return error


def _explain(root: Path, step: int, reason: str) -> str:
    previous = checkpoint.newest(root)
    kept = f"{previous.name} before it is whole" if previous is not None else "there is none before it"
    free = shutil.disk_usage(next(path for path in (root, *root.parents) if path.exists())).free
    return (
        f"the checkpoint of step {step} could not be written to {root} ({reason}; {free / 2**30:.2f} GiB "
        f"free); {kept}: {checkpoint.cure(reason)}, or set checkpoint.path to a larger disk, and go on with "
        "--resume"
    )


def _generators(devices: Devices) -> _Generators:
    version, internal, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=True)
    return _Generators(
        (version, internal, gauss),
        numpy_state[1].tobytes(),
        (int(numpy_state[2]), int(numpy_state[3]), float(numpy_state[4])),
        torch.get_rng_state().numpy().tobytes(),
        devices.generator_state(),
    )


def _set_generators(state: _Generators, devices: Devices) -> None:
    random.setstate(state.python)
    keys = np.frombuffer(state.numpy_keys, dtype=np.uint32)
    np.random.set_state(("MT19937", keys, *state.numpy_rest))
    # torch wants memory that can be written to, which bytes are not.
    torch.set_rng_state(torch.frombuffer(bytearray(state.torch), dtype=torch.uint8))
    if state.device:
        devices.set_generator_state(state.device)
