"""How weights reach the engines of one job: the transport, and what each side needs for it.

Guarantees: on one machine the model's folder and shared memory are enough, and nothing listens on the
network unless the job asks for it; in a cluster no process needs storage that it shares with another. What
is published on one machine is the driver's: it outlasts a trainer that is lost, and goes with the driver,
at the latest when the next run starts.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from rljob_api import RLJob
from rljob_runtime.net.keys import ClientSide, Keyring, ServerSide, server_keys
from rljob_runtime.site.scratch import Scratch, remove_unless_held
from rljob_runtime.weights.adapter import version_bytes
from rljob_runtime.weights.model_source import MODEL, ModelSource
from rljob_runtime.weights.shm import DISK_FOLDER, choose_root
from rljob_runtime.weights.tcp_server import FolderServer
from rljob_runtime.weights.transport import Transport, choose

_COPIES = 4
"""Versions in shared memory at a time: those that are kept, the one being written, one that is still read."""


@dataclass(frozen=True)
class WeightRoute:
    """See the module's guarantees."""

    transport: Transport
    model_folder: Path
    """Folder of the initial model, as the driver sees it."""
    root: Path | None
    """Folder in which the trainer's starts publish stored versions; None: its process chooses one, on its own
    machine."""
    server_keys: ServerSide
    """Keys of the trainer's server, for transport tcp."""
    client_keys: ClientSide
    """Keys of those who fetch from the trainer's server."""
    model: ModelSource | None
    """Where processes on other machines get the initial model."""
    server: FolderServer | None
    """The driver's server that gives the initial model to other machines; None on one machine."""
    scratch: Scratch | None = None
    """Keeps `root` for this process."""

    @property
    def fetches(self) -> bool:
        """Whether engines get anything over the network."""
        return self.transport == "tcp" or self.model is not None

    def close(self) -> None:
        """Stop serving the model; remove what was published. For when the engines have ended."""
        if self.scratch is not None:
            self.scratch.close()
        if self.server is not None:
            self.server.close()


def transport_of(job: RLJob, one_machine: bool, shared: bool = False) -> Transport:
    """The transport of a job on one machine or in a cluster; `shared`: whether workers share accelerators.

    Raises `TransportError`, whether they do or not."""
    spec = job.spec
    sync, adapter = spec.training.async_.weight_sync, spec.training.adapter
    return choose(
        sync.transport, spec.accelerator, sync.pull is not None, one_machine, adapter is not None,
        shared or spec.pools.fast_rollout.engines_per_accelerator > 1,
    )  # fmt: skip


def open_route(
    job: RLJob,
    model_folder: Path,
    run_folder: Path,
    address: str | None,
    keyring: Keyring,
    shared: bool = False,
) -> WeightRoute:
    """The route of a job. `address`: IP address of this machine in a cluster, None for one machine; `shared`:
    whether workers share its accelerators.

    Raises `TransportError`."""
    name, adapter = job.metadata.name, job.spec.training.adapter
    transport = transport_of(job, address is None, shared)
    serving, fetching = keyring.pair("weights")
    if address is None:
        size = version_bytes(model_folder, adapter)
        on_disk = run_folder / DISK_FOLDER
        if on_disk.is_dir():
            remove_unless_held(on_disk)  # of an earlier run in this folder, for which memory did not suffice
        root = choose_root(f"{name}-{os.getpid()}", run_folder, _COPIES, size)
        return WeightRoute(transport, model_folder, root, serving, fetching, None, None, Scratch(root))
    giving, reading = keyring.pair("model")
    server = FolderServer(f"tcp://{address}:0", server_keys(giving), lambda _: model_folder)
    copy = f"rljob-{job.metadata.namespace}-{name}-{MODEL}"
    model = ModelSource(str(model_folder), copy, server.endpoint, reading)
    return WeightRoute(transport, model_folder, None, serving, fetching, model, server)
