"""One rank of the trainer as a Ray actor: control comes through Ray, groups through the queue.

Guarantees: groups are acknowledged after they were trained, by rank 0; ranks get them as bytes over
torch.distributed and decode them with their type (nothing is unpickled); where rank 0 cannot get them, every
rank raises `GroupsMissing`. The driver makes each call on all ranks.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rljob_api import RLJob
from rljob_runtime.devices import Devices
from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.queue.auth import ClientKeys, Endpoint
from rljob_runtime.queue.client import QueueClient, QueueError
from rljob_runtime.samples import Group, decode_group
from rljob_runtime.trace.events import EventLog
from rljob_runtime.trainer.checkpoint import newest
from rljob_runtime.weights.nccl import NcclSender, Rendezvous

if TYPE_CHECKING:
    from rljob_runtime.trainer.worker import TrainerWorker

_GET_SECONDS = 600.0
"""Groups are asked for once they are ready; this is for a queue host that is being replaced."""
_JOIN_SECONDS = 600.0

log = logging.getLogger(__name__)


class GroupsMissing(RuntimeError):
    """Rank 0 did not get the step's groups from the queue."""


class TrainerSpec(msgspec.Struct, frozen=True):
    """What a rank is told when it starts."""

    job: str
    """The RLJob, as JSON."""
    model_folder: str
    checkpoint_root: str
    weights_root: str
    events_folder: str | None
    rank: int
    world_size: int
    total_updates: int
    """Optimizer updates in the whole job."""
    keep_versions: int
    endpoint: Endpoint
    """Of the queue."""
    keys: ClientKeys


class TrainerActor:
    """See the module's guarantees. `setup` comes first."""

    def __init__(self, spec: bytes) -> None:
        """`spec`: a `TrainerSpec` in msgpack."""
        self._spec = msgspec.msgpack.decode(spec, type=TrainerSpec)
        self._job = RLJob.model_validate_json(self._spec.job)
        self._store: Any = None
        self._worker: TrainerWorker | None = None
        self._queue: QueueClient | None = None
        self._sender: NcclSender | None = None
        self._sender_address = ""

    def address(self) -> str:
        """Where the ranks meet, host:port; for rank 0, which opens it."""
        import ray
        from torch._C._distributed_c10d import TCPStore

        host = ray.util.get_node_ip_address()
        self._store = TCPStore(host, 0, self._spec.world_size, is_master=True, wait_for_workers=False)
        return f"{host}:{self._store.port}"

    def free_address(self) -> str:
        """An address of this node where engines can meet the trainer, host:port."""
        import socket

        import ray

        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"{host}:{probe.getsockname()[1]}"

    def setup(self, address: str) -> None:
        """Join the other ranks at rank 0's `address`, and load the model."""
        from datetime import timedelta

        from torch._C._distributed_c10d import TCPStore

        from rljob_runtime.trainer.worker import TrainerWorker

        spec = self._spec
        if self._store is None:
            host, port = address.rsplit(":", 1)
            self._store = TCPStore(host, int(port), spec.world_size, timeout=timedelta(seconds=_JOIN_SECONDS))
        folder = Path(spec.events_folder) if spec.events_folder is not None else None
        devices = Devices.of(self._job.spec.accelerator)
        # Rank 0 of the events is the driver.
        self._events = EventLog(folder, 1 + spec.rank, f"trainer-{spec.rank}", "trainer", devices.synchronize)
        worker = TrainerWorker(
            self._job,
            Path(spec.model_folder),
            spec.rank,
            spec.world_size,
            Path(spec.weights_root),
            spec.keep_versions,
            self._events,
            spec.total_updates,
        )
        worker.setup(self._store)
        if spec.rank == 0:
            self._queue = QueueClient(spec.endpoint, spec.keys, "trainer")
        self._worker = worker
        self._idle_since = self._events.clock()

    def step(self, step: int, version: int, uids: Sequence[int]) -> bytes:
        """Train these groups and acknowledge them; a `StepMetrics` in msgpack."""
        worker = self._ready
        now = self._events.clock()
        self._events.add("idle", step, self._idle_since, now - self._idle_since)
        with self._events.span("get", step, groups=len(uids)):
            groups = self._groups(sorted(uids))
        metrics = worker.train_step(step, version, groups)
        if self._queue is not None:
            self._queue.ack(list(uids))
        self._idle_since = self._events.clock()
        self._events.flush()
        return msgspec.msgpack.encode(metrics)

    def publish(self, version: int) -> bytes | None:
        """Write the weights where engines load them; on rank 0 a `WeightRef` in msgpack."""
        ref = self._ready.publish(version)
        return msgspec.msgpack.encode(ref) if ref is not None else None

    def transmit(self, ref: bytes) -> None:
        """Send the weights to all engines at the rendezvous of `ref` (a `WeightRef` in msgpack, of any one of
        them); returns when they have them."""
        worker, where = self._ready, msgspec.msgpack.decode(ref, type=WeightRef)
        weights = worker.weights()
        if self._spec.rank != 0:
            for _ in weights:  # Takes part in gathering the shards.
                pass
            return
        self._join_engines(where).send(where.version, weights, worker.shapes)

    def save(self, step: int, state: bytes) -> None:
        """Write the checkpoint of `step` steps, with the driver's `state`."""
        self._ready.save_checkpoint(Path(self._spec.checkpoint_root), step, state)
        self._events.flush()

    def load(self) -> bytes | None:
        """Go on from the newest checkpoint; its `state`, None where there is none."""
        folder = newest(Path(self._spec.checkpoint_root))
        return self._ready.load_checkpoint(folder) if folder is not None else None

    def close(self) -> None:
        """Leave the queue and the other ranks; remove what was published."""
        if self._queue is not None:
            self._queue.close()
        if self._worker is not None:
            self._worker.close()
            self._events.flush()

    @property
    def _ready(self) -> "TrainerWorker":
        if self._worker is None:
            raise RuntimeError("setup comes first")
        return self._worker

    def _groups(self, uids: Sequence[int]) -> list[Group]:
        """The groups, in the order of `uids`, on every rank."""
        from rljob_runtime.trainer.broadcast import broadcast

        frames: list[bytes] | None = None
        if self._queue is not None:
            try:
                frames = self._queue.get(uids, _GET_SECONDS)
            except QueueError as error:
                broadcast(None)
                raise GroupsMissing(f"the step's groups did not come: {error}") from error
        frames = broadcast(frames)
        if frames is None:
            raise GroupsMissing("rank 0 did not get the step's groups")
        return [decode_group(frame) for frame in frames]

    def _join_engines(self, ref: WeightRef) -> NcclSender:
        """A sender to the engines of `ref`, made anew where they meet elsewhere than before."""
        meeting = Rendezvous.parse(ref.location)
        address = f"{meeting.host}:{meeting.port}"
        if self._sender is None or self._sender_address != address:
            if self._sender is not None:
                self._sender.close()
            self._sender, self._sender_address = _sender(ref), address
            self._sender.init(meeting.world_size, address)
        return self._sender


def _sender(ref: WeightRef) -> NcclSender:
    if ref.transport == "hccl":
        from rljob_runtime.weights.hccl import HcclSender

        return HcclSender()
    return NcclSender()
