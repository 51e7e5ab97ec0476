"""What runs inside vLLM's own processes so that a version arrives while they generate.

vLLM mixes `StagingWorker` into its worker class (with `vllm_extension.WeightLoader`), so `self` is the
worker. Each of its calls returns at once; that a version has arrived is told through the host's socket
(`staging_reports`).

Guarantees: the second set of weights is counted in the memory that vLLM was given, and where it has no room
there the KV cache gets all of it, as without; where a model cannot be filled by copies, or has no room,
`staging_obstacle` says why.
"""

import json
import socket
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch

from rljob_runtime.engines.second_set import SecondSet
from rljob_runtime.engines.staging_room import largest_bucket, no_room, second_set_bytes
from rljob_runtime.engines.vllm_layout import NotPlain, find_layout
from rljob_runtime.weights.buckets import BUCKET_BYTES, wire_buckets
from rljob_runtime.weights.collective import Rendezvous
from rljob_runtime.weights.contents import Shapes, tensor_shapes
from rljob_runtime.weights.disabled_group import working

_GROUP_SECONDS = 300.0
"""How long members of a group on CPUs wait for each other."""


class StagingWorker:
    """Methods that are called on every rank of an engine."""

    def staging_obstacle(self: Any) -> str:
        """Why versions do not arrive while it generates; "" where they do."""
        if not hasattr(self, "rljob_staging"):
            # Where vLLM has not asked before it made the KV cache: its size may be given.
            self.rljob_staging = _Staging(self, self.cache_config.kv_cache_memory_bytes)
        obstacle: str = self.rljob_staging.obstacle
        return obstacle

    def stage_folder(self: Any, number: int, folder: str, reports: str) -> None:
        """Begin to bring the weights of a folder."""
        self.rljob_staging.from_folder(number, Path(folder), partial(_report, reports, number, self.rank))

    def stage_broadcast(
        self: Any, number: int, location: str, shapes: Shapes, dtype: str, reports: str
    ) -> None:
        """Begin to take part in a broadcast of the weights; joins the sender's group the first time."""
        shapes = {name: tuple(shape) for name, shape in shapes.items()}
        done = partial(_report, reports, number, self.rank)
        self.rljob_staging.receive(number, Rendezvous.parse(location), self.rank, shapes, dtype, done)

    def place_between_steps(self: Any, number: int) -> None:
        """Put what arrived under this number into the model, in the order of the device's stream: steps that
        it was given before are computed with the weights before, and later ones with these."""
        self.rljob_staging.second.place(number)

    def place_staged(self: Any, number: int) -> None:
        """Put what arrived under this number into the model, and wait for that."""
        self.rljob_staging.second.place(number)
        if self.device.type != "cpu":
            # The copies run on the device's own time; the answer is to mean that they are done.
            torch.accelerator.synchronize()


class _Staging:
    """A worker's second set, or what stands against it."""

    def __init__(self, worker: Any, available: int | None) -> None:
        """`available`: bytes that there would be for the KV cache without it; None where nobody knows."""
        self.second: SecondSet | None = None
        self.bytes = 0
        """That are taken on the device."""
        self.obstacle = ""
        self._device: torch.device = worker.device
        self._meeting: Rendezvous | None = None
        self._group: Any = None
        try:
            self._make(worker, available)
        except NotPlain as error:
            self.obstacle = str(error)
        except torch.OutOfMemoryError as error:
            self.obstacle = str(error).splitlines()[0]

    def _make(self, worker: Any, available: int | None) -> None:
        if worker.device.type not in ("cpu", "cuda"):
            raise NotPlain(f"it is on a device of type {worker.device.type}, and not on a GPU or CPUs")
        if worker.vllm_config.lora_config is not None:
            raise NotPlain("its versions are adapters")
        if available is None:
            raise NotPlain("how much memory there is for the KV cache was not known when it was made")
        folder, model = Path(worker.model_config.model), worker.model_runner.get_model()
        dtype = str(worker.model_config.dtype).removeprefix("torch.")
        bucket = largest_bucket(wire_buckets(tensor_shapes(folder), dtype), BUCKET_BYTES)
        layout = find_layout(model, folder)
        needed = second_set_bytes(sum(tensor.nbytes for tensor in layout.live), bucket)
        if (obstacle := no_room(needed, available)) is not None:
            raise NotPlain(obstacle)
        with torch.no_grad():
            self.second = SecondSet(layout, bucket)
        self.bytes = needed

    def from_folder(self, number: int, folder: Path, done: Callable[[str], None]) -> None:
        assert self.second is not None
        self.second.start(number, partial(self.second.from_folder, folder), done)

    def receive(
        self,
        number: int,
        meeting: Rendezvous,
        rank: int,
        shapes: Shapes,
        dtype: str,
        done: Callable[[str], None],
    ) -> None:
        second = self.second
        assert second is not None

        def bring() -> None:
            if self._meeting != meeting:
                self._group = _join(meeting, rank, self._device)
                self._meeting = meeting
            second.receive(wire_buckets(shapes, dtype), self._broadcast)

        second.start(number, bring, done)

    def _broadcast(self, tensor: torch.Tensor, stream: Any) -> None:
        if self._device.type == "cpu":
            self._group.broadcast([tensor]).wait()
        else:
            self._group.broadcast(tensor, src=0, stream=stream)


def _join(meeting: Rendezvous, rank: int, device: torch.device) -> Any:
    """The sender's group; waits for all its members."""
    number = meeting.rank_offset + rank
    if device.type == "cpu":
        from datetime import timedelta

        from torch._C._distributed_c10d import ProcessGroupGloo, TCPStore

        patience = timedelta(seconds=_GROUP_SECONDS)
        store = TCPStore(meeting.host, meeting.port, meeting.world_size, False, patience)
        return ProcessGroupGloo(store, number, meeting.world_size, patience)
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
    from vllm.distributed.utils import StatelessProcessGroup

    store = StatelessProcessGroup.create(
        host=meeting.host, port=meeting.port, rank=number, world_size=meeting.world_size
    )
    return working(PyNcclCommunicator(store, device=device))


def _report(reports: str, number: int, rank: int, why: str) -> None:
    """Tell the host that a version has arrived on this rank, or why it has not."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(reports)
        line.sendall(json.dumps({"number": number, "rank": rank, "why": why}).encode() + b"\n")


def count_second_set() -> None:
    """Have vLLM's GPU worker make the second set before the KV cache, which gets what is left."""
    from vllm.platforms import current_platform

    if not current_platform.is_cuda_alike():
        # Other workers make it when they are asked for it.
        return
    # Imported here, since a process that is spawned may import this one before vLLM has chosen its worker.
    from vllm.v1.worker import gpu_worker

    module: Any = gpu_worker
    original = module.Worker.determine_available_memory

    @wraps(original)
    def determine_available_memory(self: Any) -> int:
        available: int = original(self)
        self.rljob_staging = _Staging(self, available)
        second: int = self.rljob_staging.bytes
        return available - second

    module.Worker.determine_available_memory = determine_available_memory
