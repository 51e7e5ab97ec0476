"""What a checkpoint holds: model, optimizer, schedule, random generators, and what the driver adds.

Guarantees: a checkpoint is whole or absent (`trainer.checkpoint`); one that could not be written leaves the
earlier ones as they were and raises `CheckpointError` on every rank; any number of ranks can load it.

Tensors are in torch.distributed.checkpoint's format, sharded; the rest is msgpack.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from rljob_runtime.devices import Devices
from rljob_runtime.trainer import checkpoint
from rljob_runtime.trainer.checkpoint import CheckpointError
from rljob_runtime.trainer.optim import ScheduledAdamW

_EXTRA = "extra.bin"
_STATE = "trainer.msgpack"
_FORMAT = 1


class _TrainerState(msgspec.Struct):
    """What a checkpoint holds beside tensors and `extra`; the same for all ranks."""

    format: int
    updates: int


class _Generators(msgspec.Struct):
    """Random generators of one rank."""

    python: tuple[int, tuple[int, ...], float | None]
    numpy_keys: bytes
    numpy_rest: tuple[int, int, float]
    torch: bytes
    device: bytes


def save(
    root: Path, step: int, keep: int, model: Any, optimizer: ScheduledAdamW, devices: Devices, extra: bytes
) -> Path:
    """Write the checkpoint of `step` (steps done) below `root`; all ranks together.

    `model` is the Hugging Face module; `extra` is written by rank 0. Raises `CheckpointError`.
    """
    partial = root / f"step_{step}.tmp"
    rank = dist.get_rank()

    def write() -> None:
        weights, moments = get_state_dict(model, optimizer.adamw)
        save_tensors(
            {"model": weights, "optimizer": moments},
            storage_writer=FileSystemWriter(partial, sync_files=True),
        )
        (partial / f"generators_{rank}.msgpack").write_bytes(msgspec.msgpack.encode(_generators(devices)))
        if rank == 0:
            (partial / _EXTRA).write_bytes(extra)
            (partial / _STATE).write_bytes(msgspec.msgpack.encode(_TrainerState(_FORMAT, optimizer.updates)))

    def first(work: Callable[[], Any]) -> Callable[[], Any]:
        return work if rank == 0 else lambda: None

    try:
        _together(first(lambda: checkpoint.begin(root, step)))
        _together(write)
        _together(first(lambda: checkpoint.finish(partial, keep)))
    except _Failed as error:
        if rank == 0:
            checkpoint.discard(partial)
        raise CheckpointError(_explain(root, step, str(error))) from error
    return root / f"step_{step}"


def load(folder: Path, model: Any, optimizer: ScheduledAdamW, devices: Devices) -> bytes:
    """Put model, optimizer, schedule and generators where the checkpoint was; returns its `extra`.

    All ranks together; their number may differ from the writer's. Raises `CheckpointError`.
    """
    try:
        state = msgspec.msgpack.decode((folder / _STATE).read_bytes(), type=_TrainerState)
        extra = (folder / _EXTRA).read_bytes()
        weights, moments = get_state_dict(model, optimizer.adamw)
        tensors: dict[str, Any] = {"model": weights, "optimizer": moments}
        load_tensors(tensors, storage_reader=FileSystemReader(folder))
    except (OSError, msgspec.DecodeError, CheckpointException, RuntimeError, KeyError) as error:
        raise CheckpointError(
            f"{folder} cannot be loaded ({_reason(error)}): it is damaged, or of another model; "
            "remove it to go on from the one before it"
        ) from error
    if state.format != _FORMAT:
        raise CheckpointError(f"{folder} has format {state.format}, this version of rljob reads {_FORMAT}")
    set_state_dict(
        model, optimizer.adamw, model_state_dict=tensors["model"], optim_state_dict=tensors["optimizer"]
    )
    optimizer.updates = state.updates
    generators = folder / f"generators_{dist.get_rank()}.msgpack"
    if generators.exists():
        _set_generators(msgspec.msgpack.decode(generators.read_bytes(), type=_Generators), devices)
    return extra


class _Failed(Exception):
    """Some rank failed."""


def _together(work: Callable[[], Any]) -> None:
    """Run `work` on every rank; raises `_Failed` on all of them where it failed on one."""
    reason = ""
    try:
        work()
    except (OSError, CheckpointException) as error:
        reason = _reason(error)
    failed = torch.tensor([int(bool(reason))])
    dist.all_reduce(failed, op=dist.ReduceOp.MAX)
    if failed.item():
        raise _Failed(reason or "another rank could not write its part")


def _reason(error: BaseException) -> str:
    if isinstance(error, CheckpointException):
        inner = next(iter(error.failures.values()))[0]
        return _reason(inner)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _explain(root: Path, step: int, reason: str) -> str:
    previous = checkpoint.newest(root)
    kept = f"{previous.name} before it is whole" if previous is not None else "there is none before it"
    free = shutil.disk_usage(next(path for path in (root, *root.parents) if path.exists())).free
    return (
        f"the checkpoint of step {step} could not be written to {root} ({reason}; {free / 2**30:.2f} GiB "
        f"free); {kept}: make room, or set checkpoint.path to a larger disk, and go on with --resume"
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
    torch.set_rng_state(torch.frombuffer(bytearray(state.torch), dtype=torch.uint8))
    if state.device:
        devices.set_generator_state(state.device)
