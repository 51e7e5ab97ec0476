"""The trainer's ranks as Ray actors, behind the training loop's `Trainer` protocol.

Guarantees: all ranks make each call together, and end together (see `rank_calls`); after `start` they are new
processes with the job's initial weights.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from rljob_api import RLJob
from rljob_runtime.driver.job_settings import JobSettings
from rljob_runtime.driver.model_folder import checkpoint_root
from rljob_runtime.driver.rank_calls import Deadline, RankCalls, name_of
from rljob_runtime.driver.resume import with_fitting_groups
from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.fleet.shared_devices import SharedDevices
from rljob_runtime.fleet.worker_options import BESIDE, rank_options
from rljob_runtime.groups.state import JobState
from rljob_runtime.queue.service import QueueService
from rljob_runtime.run_folder import RunOptions
from rljob_runtime.site.own_start import OnStart, StartPart
from rljob_runtime.site.process_log import log_file
from rljob_runtime.trace.record.event_ranks import EventRanks
from rljob_runtime.trainer.rank_actor import TrainerActor, TrainerSpec
from rljob_runtime.trainer.step_metrics import StepMetrics
from rljob_runtime.weights.route import WeightRoute
from rljob_runtime.weights.transport import STORED

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 20.0
"""How long ranks may take to leave in order; then they are killed."""
_LOOK = Deadline(300.0)
"""For a rank to look for a file, or for a free port."""


async def _told(rank: Any, uids: Sequence[int]) -> None:
    """Tell a rank that the queue has these groups."""
    from ray.exceptions import RayError

    try:
        await rank.fetch_ahead.options(concurrency_group=BESIDE).remote(list(uids))
    except RayError as error:
        # Whoever waits for the rank hears of its end; where groups are fetched later nothing is lost.
        log.debug("rank 0 was not told of groups: %s", error)


class RayTrainer:
    """See the module's guarantees."""

    def __init__(
        self,
        job: RLJob,
        settings: JobSettings,
        options: RunOptions,
        queue: QueueService,
        events_folder: Path | None,
        ranks: EventRanks,
        route: WeightRoute,
        shared: SharedDevices | None = None,
        on_start: OnStart = lambda *_: None,
        logs: Path | None = None,
        early: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`shared`: the accelerators that ranks share with engines; None where each has its own. `on_start`:
        whom to tell where the time of a rank's start went. `logs`: the run's folder, where ranks log on one
        machine; None in a cluster. `early`: actors of `trainer.early_rank` that were begun for the first
        start, by the ranks' names: those of all ranks, or none."""
        self._early = early
        self._logs = logs
        self._on_start = on_start
        self._shared = shared
        self._job = job
        timeouts = job.spec.training.timeouts
        self._start_deadline = Deadline(timeouts.start_seconds, "startSeconds")
        self._update_deadline = Deadline(timeouts.weight_update_seconds, "weightUpdateSeconds")
        self._step_deadline = Deadline(timeouts.step_seconds, "stepSeconds")
        self._settings = settings
        self._options = options
        self._queue = queue
        self._events_folder = events_folder
        self._event_ranks = ranks
        self._route = route
        self.turn = asyncio.Lock()
        """Held during a step, a checkpoint and a broadcast: the engines of a broadcast stand still meanwhile,
        and must not wait for a step."""
        self.steps = 0
        """Steps that the ranks' weights have behind them."""
        self.starts = 0
        """How often ranks were started: a group of engines that they joined ends with them."""
        self._calls = RankCalls(job, shared is not None, logs, self._forget)
        self._news: list[int] = []
        """Groups that the queue has, of which rank 0 is to be told."""
        self._stepping = False
        """Whether these ranks have begun a step. Before that the job is brought to where they are: what the
        queue has may be of a term that is over."""
        self._telling: asyncio.Task[None] | None = None
        """That is being done."""

    async def start(self, nodes: Sequence[str]) -> None:
        """Start a rank on each of these Ray nodes, of which one may be named several times; returns when each
        has its model. What was left of earlier ranks is ended."""
        self._calls.end()
        self.starts += 1
        # New ranks have the initial weights until `load`.
        self.steps = 0
        specs = [self._spec(rank, len(nodes)) for rank in range(len(nodes))]
        early, self._early = self._early, {}
        if early:
            self._calls.ranks = [early[name_of(rank)] for rank in range(len(nodes))]
            await self._calls.call("begin", specs, deadline=self._start_deadline)
        else:
            self._calls.ranks = [self._start_rank(rank, node, specs[rank]) for rank, node in enumerate(nodes)]
        # Ray holds calls back until the actor's process runs, so that the deadline is that of its start too.
        address, *_ = await self._calls.call("prepare", deadline=self._start_deadline)
        starts = await self._calls.call("setup", address, deadline=self._start_deadline)
        for rank, parts in enumerate(starts):
            found = msgspec.msgpack.decode(parts, type=tuple[StartPart, ...])
            self._on_start(name_of(rank), "trainer", found)

    async def stop(self) -> None:
        """End all ranks, leaving everything in order; `start` may follow."""
        from ray.exceptions import RayError

        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*(rank.close.remote() for rank in self._calls.ranks))
        except (RayError, TimeoutError):
            log.info("the trainer did not close in time, or was gone")
        self._calls.end()

    async def sees(self, path: Path) -> list[bool]:
        """For each rank whether a file is there on its machine."""
        return await self._calls.call("sees", str(path), deadline=_LOOK)

    async def step(self, step: int, version: int, uids: Sequence[int]) -> StepMetrics:
        """Train these groups, taken from the queue by uid, and acknowledge them."""
        self._stepping = True
        async with self.turn:
            results = await self._calls.call("step", step, version, list(uids), deadline=self._step_deadline)
            # Before `turn` is let go: who has it next names the version of the weights by this.
            self.steps = step + 1
        return msgspec.msgpack.decode(results[0], type=StepMetrics)

    @property
    def stores(self) -> bool:
        """Whether versions are stored, so that engines load them while the trainer goes on."""
        return self._route.transport in STORED

    def fetch_ahead(self, uids: Sequence[int]) -> None:
        """The queue has these groups: let rank 0 fetch them beside the step that it is at. Returns at once;
        what comes of it is seen in the step that names them."""
        if not self._stepping:
            return
        self._news += uids
        if self._telling is None or self._telling.done():
            self._telling = asyncio.ensure_future(self._tell_news())

    async def _tell_news(self) -> None:
        """Tell rank 0 of groups, of all at once that have come since it was told last."""
        while self._news and self._calls.ranks:
            uids, self._news = self._news, []
            await _told(self._calls.ranks[0], uids)

    async def publish(self, version: int) -> None:
        """Make the current weights `version`. Where versions are stored, all ranks gather the weights, and
        rank 0 copies them; else they are those of the moment in which they are sent."""
        if self.stores:
            await self._calls.call("publish", version, deadline=self._update_deadline)

    async def ref(self, version: int) -> WeightRef:
        """Where engines get the version that was published last: where rank 0 has stored it by now, or, for a
        collective transport, a free address where they can meet the trainer. The next step may begin."""
        rank = self._calls.ranks[:1]
        if not self.stores:
            call = self._calls.call("free_address", deadline=_LOOK, ranks=rank, group=BESIDE)
            return WeightRef(version, self._route.transport, (await call)[0])
        call = self._calls.call("write_version", deadline=self._update_deadline, ranks=rank, group=BESIDE)
        return msgspec.msgpack.decode((await call)[0], type=WeightRef)

    async def transmit(self, ref: WeightRef) -> bool:
        """Send the weights of a collective `ref`, while holding `turn`; False where that was broken off."""
        sent = msgspec.msgpack.encode(ref)
        results = await self._calls.call("transmit", sent, deadline=self._update_deadline)
        return bool(results[0])

    async def break_off(self, ref: WeightRef, why: str) -> None:
        """End the sending of `ref`, of whose engines one is lost."""
        await self._calls.call(
            "break_off", msgspec.msgpack.encode(ref), why, deadline=self._update_deadline,
            ranks=self._calls.ranks[:1], group=BESIDE,
        )  # fmt: skip

    async def save(self, step: int, state: bytes) -> None:
        """Write a checkpoint after `step` steps."""
        async with self.turn:
            await self._calls.call("save", step, state, deadline=self._step_deadline)

    async def load(self) -> JobState | None:
        """Go on from the newest checkpoint, if there is one; returns where the job stood, with those of the
        waiting groups that it can still train."""
        results = await self._calls.call("load", deadline=self._step_deadline)
        if results[0] is None:
            return None
        state = msgspec.msgpack.decode(results[0], type=JobState)
        self.steps = state.step
        fitting = with_fitting_groups(state, self._settings)
        if dropped := len(state.waiting) - len(fitting.waiting):
            log.info("%d waiting groups do not fit the job as it is and are left out", dropped)
        return fitting

    async def close(self) -> None:
        """End all ranks. What they published on this machine goes with the route."""
        await self.stop()

    def _weights_folder(self, start: int) -> Path | None:
        """Where the ranks of start number `start` publish versions, each start in a folder of its own, since
        engines may still read from an earlier one. None: the ranks choose a folder on their machine."""
        root = self._route.root
        return None if root is None else root / f"start-{start}"

    def _spec(self, rank: int, world_size: int) -> bytes:
        """What a rank of this start is told, in msgpack."""
        push = self._job.spec.training.async_.weight_sync
        root = self._weights_folder(self.starts)
        spec = TrainerSpec(
            job=self._job.model_dump_json(by_alias=True, exclude_none=True),
            model_folder=str(self._route.model_folder),
            model=self._route.model,
            code_folder=str(self._options.manifest_folder),
            checkpoint_root=str(
                checkpoint_root(self._job, self._options.folder, self._options.manifest_folder)
            ),
            weights_root=str(root) if root is not None else None,
            serve=self._route.server_keys if self._route.transport == "tcp" and rank == 0 else None,
            events_folder=str(self._events_folder) if self._events_folder is not None else None,
            events_rank=self._event_ranks.of(name_of(rank)),
            rank=rank,
            world_size=world_size,
            total_updates=self._settings.total_updates,
            keep_versions=push.pull.keep_versions if push.pull is not None else 2,
            endpoint=self._queue.endpoint,
            keys=self._queue.keys,
            asked=time.time(),
            own_device=self._shared is None,
            log=None if self._logs is None else str(log_file(self._logs, name_of(rank))),
        )
        return msgspec.msgpack.encode(spec)

    def _start_rank(self, rank: int, node: str, spec: bytes) -> Any:
        import ray

        options = rank_options(self._job, rank, node, self._shared)
        return ray.remote(**options)(TrainerActor).remote(spec)

    def _forget(self) -> None:
        """These ranks are ended: what they were to be told is of no use to those after them."""
        self._news, self._stepping = [], False
