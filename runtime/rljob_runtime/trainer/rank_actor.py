"""One rank of the trainer as a Ray actor: control comes through Ray, groups through the queue.

Guarantees: rank 0 gets the step's groups from the queue, gives each other rank what it trains, and
acknowledges them after they were trained (nothing is unpickled); where it cannot get them, every rank raises
`GroupsMissing`. The driver makes each call on all ranks, but for those that say otherwise.
"""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rljob_api import RLJob
from rljob_runtime.devices import Devices
from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.net.auth import Endpoint
from rljob_runtime.net.keys import ClientSide, ServerSide, client_keys, server_keys
from rljob_runtime.queue.blocking_client import QueueClient
from rljob_runtime.queue.client import QueueError
from rljob_runtime.samples import Group
from rljob_runtime.site import process_log
from rljob_runtime.site.large_imports import large_imports
from rljob_runtime.site.own_start import OwnStart, StartPart, created, of_one_start
from rljob_runtime.site.process_use import ProcessUse, UseSampler, meter_of
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.trace.record.worker_start import record_start
from rljob_runtime.trainer.checkpoint import newest
from rljob_runtime.trainer.groups_ahead import GroupsAhead
from rljob_runtime.trainer.outline import GroupsMissing
from rljob_runtime.weights.adapter import version_bytes
from rljob_runtime.weights.collective import CollectiveSender, EngineGroup, Rendezvous
from rljob_runtime.weights.model_source import ModelSource, local_copy
from rljob_runtime.weights.shm import choose_root
from rljob_runtime.weights.tcp_server import FolderServer

if TYPE_CHECKING:
    from rljob_runtime.trainer.rank import TrainerWorker

_QUEUE_SECONDS = 600.0
"""Groups are asked for once they are ready, and an acknowledgement waits for nothing: this is for a queue
host that is being replaced."""
_JOIN_SECONDS = 600.0
_BREAK_SECONDS = 20.0
"""How long a broadcast that lost an engine may take to end; afterwards the trainer is started again."""
_COPIES = 3
"""Versions that take room at a time: those that are kept, and the one being written."""

log = logging.getLogger(__name__)


class TrainerSpec(msgspec.Struct, frozen=True):
    """What a rank is told when it starts."""

    job: str
    """The RLJob, as JSON."""
    model_folder: str
    model: ModelSource | None
    """Where the model comes from when `model_folder` may not be on this machine."""
    code_folder: str
    """The manifest's folder: where functions of the job's own are looked for first, and a teacher is."""
    checkpoint_root: str
    weights_root: str | None
    """Where versions are published; None: chosen on this machine."""
    serve: ServerSide | None
    """Keys of the server that gives published versions to other machines; None: there is none."""
    events_folder: str | None
    events_rank: int
    rank: int
    world_size: int
    total_updates: int
    """Optimizer updates in the whole job."""
    keep_versions: int
    endpoint: Endpoint
    """Where the queue listens."""
    keys: ClientSide
    asked: float = 0.0
    """When it was asked for, in seconds since the epoch."""
    own_device: bool = False
    """Whether it shares its accelerator with no engine."""
    log: str | None = None
    """See `process_log.begin`."""


class TrainerActor:
    """See the module's guarantees. `prepare` comes first, then `setup`."""

    def __init__(self, spec: bytes) -> None:
        """`spec`: a `TrainerSpec` in msgpack."""
        self._spec = msgspec.msgpack.decode(spec, type=TrainerSpec)
        process_log.begin(None if self._spec.log is None else Path(self._spec.log))
        self._start = OwnStart()
        self._start.process("process", created())
        self._unrecorded: tuple[StartPart, ...] = ()
        """Parts of the start, which are recorded with the first step: before it is not known which."""
        self._job = RLJob.model_validate_json(self._spec.job)
        self._store: Any = None
        self._worker: TrainerWorker | None = None
        self._queue: QueueClient | None = None
        self._ahead: GroupsAhead | None = None
        """Gets groups from the queue, some before a step names them."""
        seconds = self._job.spec.training.timeouts.weight_update_seconds
        self._engines = EngineGroup(lambda transport: _sender(transport, seconds))
        self._step = 0
        """The newest step, to which events between steps are charged."""
        self._server: FolderServer | None = None
        self._sampler: UseSampler | None = None

    def prepare(self) -> str | None:
        """Import what the trainer needs, which all ranks do at a time. Rank 0 also opens the store at which
        they meet, and returns where: host:port."""
        import ray

        with self._start.part("imports"):
            import_needed()
        if self._spec.rank:
            return None
        from torch._C._distributed_c10d import TCPStore

        host = ray.util.get_node_ip_address()
        # Port 0 takes a free one. Without waiting, for the others learn the address from what this returns.
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

    def setup(self, address: str) -> bytes:
        """Join the other ranks at rank 0's `address`, and load the model. Where the time of the start went: a
        tuple of `StartPart` in msgpack."""
        from datetime import timedelta

        from torch._C._distributed_c10d import TCPStore

        from rljob_runtime.trainer.rank import TrainerWorker

        spec = self._spec
        if self._store is None:
            host, port = address.rsplit(":", 1)
            self._store = TCPStore(host, int(port), spec.world_size, timeout=timedelta(seconds=_JOIN_SECONDS))
        folder = Path(spec.events_folder) if spec.events_folder is not None else None
        devices = Devices.of(self._job.spec.accelerator)
        self._events = EventLog(
            folder, spec.events_rank, f"trainer-{spec.rank}", "trainer", devices.synchronize
        )
        if folder is not None:
            meter = meter_of(devices.accelerator, computes=True)
            self._sampler = UseSampler(ProcessUse(meter), self._used)
            self._sampler.start()
        model_folder = Path(spec.model_folder)
        if spec.model is not None:
            with self._start.part("fetch"):
                model_folder = local_copy(spec.model)
        self._weights_root = self._choose_root(model_folder)
        taught = self._job.spec.training.algorithm.teacher_folder
        worker = TrainerWorker(
            self._job,
            model_folder,
            spec.rank,
            spec.world_size,
            self._weights_root,
            spec.keep_versions,
            self._events,
            spec.total_updates,
            search_path=[Path(spec.code_folder)],
            teacher_folder=Path(spec.code_folder) / taught if taught is not None else None,
            own_device=spec.own_device,
        )
        worker.setup(self._store, self._start)
        if spec.rank == 0:
            self._queue = QueueClient(
                spec.endpoint, client_keys(spec.keys), "trainer", patience_seconds=_QUEUE_SECONDS
            )
            queue = self._queue
            # As many as a step takes, which are the next one's.
            self._ahead = GroupsAhead(
                lambda uids: queue.get(uids, _QUEUE_SECONDS), self._job.spec.training.groups_per_step
            )
        self._worker = worker
        log.info("rank %d of %d has the model", spec.rank, spec.world_size)
        self._idle_since = self._events.clock()
        self._unrecorded = of_one_start(self._start.parts, spec.asked)
        return msgspec.msgpack.encode(self._unrecorded)

    def step(self, step: int, version: int, uids: Sequence[int]) -> bytes:
        """Train these groups and acknowledge them; a `StepMetrics` in msgpack."""
        worker = self._ready
        record_start(self._events, step, self._unrecorded)
        self._unrecorded = ()
        self._idle_ends(step)
        self._step = step
        groups: list[Group] | None = None
        failure: QueueError | msgspec.DecodeError | None = None
        if self._ahead is not None:
            with self._events.span("get", step, groups=len(uids)):
                try:
                    groups = self._ahead.take(sorted(uids))
                except (QueueError, msgspec.DecodeError) as error:
                    failure = error
        try:
            # Also without groups: the other ranks wait for what rank 0 has to tell.
            metrics = worker.train_step(step, version, groups)
        except GroupsMissing:
            if failure is None:
                raise
            raise GroupsMissing(f"the step's groups did not come: {failure}") from failure
        if self._queue is not None:
            self._queue.ack(list(uids), _QUEUE_SECONDS)
        self._idle_since = self._events.clock()
        self._events.flush()
        return msgspec.msgpack.encode(metrics)

    def fetch_ahead(self, uids: Sequence[int]) -> None:
        """The queue has these groups, of which coming steps name theirs. On rank 0, beside a step; returns at
        once."""
        if self._ahead is not None:
            self._ahead.tell(uids)

    def publish(self, version: int) -> None:
        """Make the weights as they are now `version`; on all ranks."""
        self._idle_ends(self._step)
        self._ready.publish(version)
        self._idle_since = self._events.clock()

    def write_version(self) -> bytes:
        """Write what was published last where engines load it: a `WeightRef` in msgpack. On rank 0; to be
        called beside a step."""
        ref = self._ready.write_version()
        if self._spec.serve is not None:
            ref = WeightRef(ref.version, "tcp", f"{self._serve(self._spec.serve)}/{Path(ref.location).name}")
        return msgspec.msgpack.encode(ref)

    def sees(self, path: str) -> bool:
        """Whether a file is there, as seen from this rank's machine."""
        return Path(path).exists()

    def transmit(self, ref: bytes) -> bool:
        """Send the weights to all engines at the rendezvous of `ref` (a `WeightRef` in msgpack, of any one of
        them); returns when they have them, or on rank 0 False where that was broken off."""
        worker, where = self._ready, msgspec.msgpack.decode(ref, type=WeightRef)
        weights, sent = worker.weights(), True
        if self._spec.rank == 0:
            meeting = Rendezvous.parse(where.location)
            sent = self._engines.send(
                where.transport, meeting, where.version, weights, worker.shapes, where.staged
            )
        # Gathering is collective: every rank runs through all weights, also where rank 0 sent only some.
        for _ in weights:
            pass
        return sent

    def break_off(self, ref: bytes, why: str) -> None:
        """An engine that `transmit` of `ref` sends to is lost. To be called beside it; returns when it has
        ended, and raises `TimeoutError` where it does not come to its end."""
        where = msgspec.msgpack.decode(ref, type=WeightRef)
        self._engines.break_off(Rendezvous.parse(where.location).address, why, _BREAK_SECONDS)

    def save(self, step: int, state: bytes) -> None:
        """Write the checkpoint of `step` steps, with the driver's `state`."""
        self._idle_ends(step)
        self._ready.save_checkpoint(Path(self._spec.checkpoint_root), step, state)
        self._idle_since = self._events.clock()
        log.info("rank %d: checkpoint of step %d written", self._spec.rank, step)
        self._events.flush()

    def load(self) -> bytes | None:
        """Go on from the newest checkpoint; its `state`, None where there is none."""
        folder = newest(Path(self._spec.checkpoint_root))
        if folder is None:
            return None
        log.info("rank %d goes on from %s", self._spec.rank, folder.name)
        return self._ready.load_checkpoint(folder)

    def close(self) -> None:
        """Leave the queue and the other ranks; remove what was published."""
        if self._sampler is not None:
            self._sampler.stop()
        if self._server is not None:
            self._server.close()
        self._engines.close()
        if self._queue is not None:
            self._queue.close()
        if self._ahead is not None:
            self._ahead.close()
        if self._worker is not None:
            self._worker.close()
            self._events.flush()

    def _used(self, began: float, seconds: float, values: Mapping[str, float]) -> None:
        self._events.add("usage", self._step, began, seconds, **values)

    def _idle_ends(self, step: int) -> None:
        """The rank has work to do: what it waited until now is recorded, apart from the work, so that its
        events do not overlap."""
        now = self._events.clock()
        self._events.add("idle", step, self._idle_since, now - self._idle_since)

    def _choose_root(self, model_folder: Path) -> Path:
        """Where versions are published. The folder is the same at every start on this machine, so that a
        trainer that is started again takes over what is published there."""
        if self._spec.weights_root is not None:
            return Path(self._spec.weights_root)
        name = f"{self._job.metadata.namespace}-{self._job.metadata.name}"
        size = version_bytes(model_folder, self._job.spec.training.adapter)
        return choose_root(name, Path(tempfile.gettempdir()) / f"rljob-{name}", _COPIES, size)

    def _serve(self, keys: ServerSide) -> str:
        """Address of the server that gives away what is published here."""
        if self._server is None:
            import ray

            address = f"tcp://{ray.util.get_node_ip_address()}:0"
            self._server = FolderServer(address, server_keys(keys), lambda name: self._weights_root / name)
        return self._server.endpoint.address

    @property
    def _ready(self) -> "TrainerWorker":
        if self._worker is None:
            raise RuntimeError("setup comes first")
        return self._worker


def import_needed() -> None:
    """Import what a rank needs in any case."""
    with large_imports():
        from transformers import modeling_utils  # noqa: F401 - what loads a model would import it

        import rljob_runtime.trainer.rank  # noqa: F401 - for `setup`


def _sender(transport: str, call_seconds: float) -> CollectiveSender:
    if transport == "hccl":
        from rljob_runtime.weights.hccl import HcclSender

        return HcclSender(call_seconds)
    from rljob_runtime.weights.nccl import NcclSender

    return NcclSender(call_seconds)
