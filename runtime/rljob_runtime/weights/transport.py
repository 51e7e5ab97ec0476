"""What carries weights from the trainer to the engines. Pure."""

from typing import Literal, TypeAlias

Wanted: TypeAlias = Literal["auto", "shm", "nccl", "hccl", "tcp"]
Transport: TypeAlias = Literal["shm", "nccl", "hccl", "tcp"]

STORED: frozenset[Transport] = frozenset({"shm", "tcp"})
"""Versions are kept for whoever comes: each engine gets one when it is ready. With the others the trainer
sends a version to all engines at once, in one group."""

FETCHED: frozenset[Transport] = frozenset({"tcp"})
"""An engine brings a version to its machine before it loads it, and can do so while it generates."""

_OF_ACCELERATOR: dict[str, Transport] = {"cpu": "tcp", "nvidia": "nccl", "ascend": "hccl"}


class TransportError(ValueError):
    """The transport that was asked for cannot work here; the message says what can."""


def choose(
    wanted: Wanted,
    accelerator: str,
    pull: bool,
    one_machine: bool,
    adapter: bool = False,
    shared: bool = False,
) -> Transport:
    """The transport of a job. `pull`: engines fetch versions; `one_machine`: all processes share its memory;
    `adapter`: versions are adapters, which are stored; `shared`: workers share an accelerator, of which a
    group has one member alone.

    Raises `TransportError` for shared memory in a cluster."""
    if wanted == "shm" and not one_machine:
        raise TransportError(
            "training.async.weightSync.transport: shm reaches one machine only; use auto in a cluster"
        )
    if wanted != "auto":
        return wanted
    stored = pull or adapter or shared
    if one_machine:
        # From device to device 1.2 GB take hundredths of a second, and through main memory nearly a whole
        # one, for which a hard bound waits.
        return "nccl" if accelerator == "nvidia" and not stored else "shm"
    return "tcp" if stored else _OF_ACCELERATOR[accelerator]
