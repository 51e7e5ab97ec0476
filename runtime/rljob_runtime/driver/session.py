"""One run of a job, from its parts: starts them, keeps them going, takes them down.

Guarantees:
- nothing heavy starts before data, tokenizer and model are there;
- a lost trainer, queue host or rollout worker is replaced: the trainer goes on from the newest checkpoint,
  the queue is filled again from the groups that are kept, requests move to other engines; what keeps failing
  ends the job;
- what the RLJob asks for while the job runs is done: other sizes of the pools, a stop when it is suspended or
  deleted; the site's status draft says how far;
- whatever happens, every part that was started is ended.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rljob_api import RLJob
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.driver.export import keep_model_files
from rljob_runtime.driver.job_settings import JobSettings
from rljob_runtime.driver.model_folder import checkpoint_root, engine_model
from rljob_runtime.driver.places import StopAsked, TrainerPlaces
from rljob_runtime.driver.ranks import RayTrainer, TrainerDied
from rljob_runtime.driver.storage import judge
from rljob_runtime.driver.tracker import Tracker
from rljob_runtime.driver.training_loop import LoopSettings, TrainingLoop
from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.fleet.device_share import device_share
from rljob_runtime.fleet.fleet import Fleet, FleetTimes
from rljob_runtime.fleet.workers import RolloutWorkers
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.staleness import StalenessController
from rljob_runtime.groups.state import JobState
from rljob_runtime.queue.service import QueueService
from rljob_runtime.restarts import RestartBudget
from rljob_runtime.rewards.pool import RewardPool
from rljob_runtime.rollout.outbox import Outbox
from rljob_runtime.rollout.pool import EnginePool, EngineSlot
from rljob_runtime.rollout.rollouter import Rollouter
from rljob_runtime.rollout.scorer import PoolScorer
from rljob_runtime.rollout.weight_sync import EngineSync, Pull, Push
from rljob_runtime.run_folder import RunOptions
from rljob_runtime.site import one_machine as local_ray
from rljob_runtime.site.site import Site
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER, EventLog
from rljob_runtime.trace.record.ranks import EventRanks
from rljob_runtime.trainer.checkpoint import folder_of, newest, step_of
from rljob_runtime.trainer.step_metrics import StepMetrics
from rljob_runtime.weights.route import open_route
from rljob_runtime.weights.transport import STORED

log = logging.getLogger(__name__)

_PUT_SECONDS = 1800.0
_SYNC_SECONDS = 300.0
_DRAIN_SECONDS = 3600.0
_STORAGE_LOOKS, _STORAGE_SECONDS = 5, 1.0
"""Shared storage may show a new file a moment later on other machines."""


class Session:
    """See the module's guarantees."""

    def __init__(
        self,
        job: RLJob,
        options: RunOptions,
        settings: JobSettings,
        tokenizer: TextTokenizer,
        prompts: PromptSource,
        site: Site,
        say: Callable[[str], None],
    ) -> None:
        """`say` tells a person, in one line."""
        self.job = job
        self.settings = settings
        self.steps_done = 0
        self.checkpoint_step = 0
        """Steps in the newest checkpoint, as far as it is known; 0 where there is none."""
        self._options = options
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._site = site
        self._say = say
        self._loop: TrainingLoop | None = None
        self._stopping = False
        folder = options.folder / EVENTS_FOLDER if job.spec.training.profiling.events else None
        self._events_folder = folder
        self.events = EventLog(folder, 0, "driver", "driver")
        self._ranks = EventRanks()
        ranks_per_worker = settings.trainer_ranks // job.spec.pools.trainer.replicas
        deadline = job.spec.run_policy.start_deadline_seconds
        self._places = TrainerPlaces(site, ranks_per_worker, deadline, lambda: self._stopping)
        self._checkpoints = checkpoint_root(job, options.folder, options.manifest_folder)
        self._beginning = JobState(0, Ledger(), [], GroupCounts(), prompts.fingerprint)
        self.pool = EnginePool(time.time, self._engine_lost)

    def stop(self) -> None:
        """Stop after the step that is being trained, with a checkpoint."""
        self._stopping = True
        self._site.changes.notify()
        if self._loop is not None:
            self._loop.stop_asked.set()

    async def run(
        self,
        tracker_for: Callable[[EnginePool, int], Tracker],
        on_step: Callable[[], None],
        on_trained: Callable[[], None],
    ) -> None:
        """Train to the end or to a stop. `tracker_for` makes the tracker once the first step is known;
        `on_step` is called after each step, `on_trained` when the last checkpoint and all events are written
        and taking down begins."""
        async with AsyncExitStack() as stack:
            self._tasks = await stack.enter_async_context(asyncio.TaskGroup())
            await self._assemble(stack)
            following = self._tasks.create_task(self._follow(), name="follow")
            try:
                await self._run(tracker_for, on_step)
            except StopAsked:
                log.info("stopped while waiting for pods")
            following.cancel()
            if self._site.desired().suspend and self.steps_done < self.settings.total_steps:
                self._site.draft.suspended_at(self.checkpoint_step)
            self._flush_events()
            on_trained()
            # Before the trainer, whose weights a worker that is just starting would miss.
            await self._fleet.close()

    async def _run(
        self, tracker_for: Callable[[EnginePool, int], Tracker], on_step: Callable[[], None]
    ) -> None:
        """Train, once everything is assembled."""
        if self._options.resume and (found := newest(self._checkpoints)) is not None:
            self.checkpoint_step = step_of(found)
        await self._start_trainer()
        state = await self._trainer.load() if self._options.resume else None
        self._tracker = tracker_for(self.pool, state.step if state else 0)
        self._site.draft.progress(self._tracker.progress)
        self._on_step = on_step
        state = state or self._beginning
        self.steps_done = self.checkpoint_step = state.step
        self._rollouter.counts = state.counts.copy()
        await self._restore(state, "job resumed", publish=state is not self._beginning)
        await self._fleet.started(lambda: self._stopping)
        rolling = self._tasks.create_task(self._rollouter.run(), name="rollouter")
        try:
            await self._train(state.step)
        finally:
            rolling.cancel()

    async def _follow(self) -> None:
        """Do what the RLJob asks for while the job runs."""
        site = self._site
        while True:
            desired = site.desired()
            self._fleet.adjust()
            if (desired.suspend or desired.deleted) and not self._stopping:
                self._say("the job is deleted" if desired.deleted else "the job is to be suspended")
                self.stop()
            elif self._places.outdated and self._loop is not None:
                self._loop.stop_asked.set()
            site.draft.acted_on(desired.generation)
            await site.changes.wait()

    async def _assemble(self, stack: AsyncExitStack) -> None:
        """Make every part; the heavy ones start later."""
        training, settings = self.job.spec.training, self.settings
        model_folder = await asyncio.to_thread(engine_model, self.job, self._options, self._tokenizer)
        await asyncio.to_thread(keep_model_files, model_folder, self._tokenizer, self._options.folder)
        site = self._site
        address = None if site.one_machine else site.address
        route = await asyncio.to_thread(
            open_route, self.job, model_folder, self._options.folder, address, site.keyring
        )
        stack.callback(route.close)
        self._queue = QueueService(
            settings.capacity_samples, site.home, address, site.keyring, self._spawn, self._queue_lost
        )
        stack.push_async_callback(self._queue.close)
        await self._queue.start()
        self._outbox = Outbox(self._queue.client, self.events, _PUT_SECONDS)
        rewards = RewardPool(
            training.reward.function,
            training.reward.arguments,
            timeout_seconds=training.reward.timeout_seconds,
            workers=training.reward.workers,
            search_path=[self._options.manifest_folder],
            log=self._options.folder / "rewards.log",
        )
        stack.push_async_callback(rewards.close)
        await rewards.start()
        scorer = PoolScorer(
            rewards, self._tokenizer, training.rollout.max_response_tokens, training.reward.overlong
        )
        self._controller = self._new_controller(Ledger())
        self._rollouter = Rollouter(
            settings.rollout, self.pool, self._controller, self._prompts.prompt, iter(()), scorer,
            self._outbox, self.events,
        )  # fmt: skip
        stack.callback(lambda: log.info("at the end: %s", self._rollouter.counts))
        share = device_share(self.job, local_ray.devices(), self._options.share)
        self._trainer = RayTrainer(
            self.job, settings, self._options, self._queue, self._events_folder, self._ranks, route, share
        )
        self._trainer_budget = RestartBudget("the trainer")
        stack.push_async_callback(self._trainer.close)
        sync = EngineSync(self.pool, _SYNC_SECONDS, _DRAIN_SECONDS)
        self._weights = Push(sync, settings.in_flight) if settings.in_flight else Pull(sync, self._spawn)
        self._may_join = asyncio.Event()
        workers = RolloutWorkers(
            self.job, self._tokenizer, share, site.one_machine, self._events_folder, self._ranks, route,
            site.keyring,
        )  # fmt: skip
        stack.callback(workers.close)
        stack.callback(self._flush_events)
        self._fleet = Fleet(
            workers, self.pool, self._weights, self._push_again, self._may_join, site, self._spawn, self._say,
            FleetTimes(first=self.job.spec.run_policy.start_deadline_seconds), time.time,
        )  # fmt: skip
        stack.push_async_callback(self._fleet.close)

    def _new_controller(self, ledger: Ledger) -> StalenessController:
        return self.settings.controller(len(ledger))

    def _flush_events(self) -> None:
        """Write what is buffered of the driver's events and of those that it records for the engines."""
        self.events.flush()
        self._fleet.flush_events()

    async def _restore(self, state: JobState, why: str, publish: bool) -> None:
        """Put every part where `state` says, since `why`; no group is under way. `publish` where the engines
        hold other weights than the trainer. Dispatch begins when all of it is done."""
        self._rollouter.counts.went_back(state.kept, why)
        self._ledger = state.ledger.copy()
        self._controller = self._new_controller(self._ledger)
        # First the outbox: a queue host that comes back meanwhile is filled from it.
        groups = self._outbox.restore(state.waiting)
        await self._queue.reset(self._ledger)
        await self._outbox.refill()
        for group in groups:
            self._controller.dispatched(group.uid, group.dispatch_version)
            self._controller.put(group.uid)
        self.pool.step = state.step
        version = self.settings.bound.version_at(state.step)
        if publish:
            await self._push_version(version)
        # At once: an engine that came during the push asks for the weights when that has ended.
        self._may_join.set()
        if publish:
            await self._weights.settled()
            self.pool.lose_newer(version)
        waiting = {group.uid for group in groups}
        self._rollouter.restart(self._controller, self._ledger.remaining(self.settings.total_groups, waiting))

    async def _push_version(self, version: int) -> None:
        """Give all engines the trainer's weights as `version`."""
        ref = await self._trainer.publish(version)
        await self._weights.deliver(ref, None if ref.transport in STORED else self._trainer)

    async def _push_again(self) -> None:
        """Send engines that have just come what the trainer holds (a collective transport keeps nothing)."""
        assert isinstance(self._weights, Push)
        try:
            await self._weights.again(self._current, self._trainer)
        except TrainerDied as error:
            # The loop meets the same, and sends a version to all engines once the trainer is back.
            log.info("the newest version is not sent again: %s", error)

    async def _current(self) -> WeightRef | None:
        """The trainer's weights while it stands still, or None: where nobody waits for them, and where the
        trainer is being brought back, which ends with a push to all. Within a version (of several steps) they
        are newer than what others hold as that version: newcomers wait for the next, unless nobody else
        serves."""
        step, bound, slots = self._trainer.steps, self.settings.bound, self.pool.slots
        if not self._may_join.is_set() or all(slot.entered for slot in slots):
            return None
        if step % bound.steps_per_version and any(slot.joined for slot in slots):
            return None
        return await self._trainer.publish(bound.version_at(step))

    async def _start_trainer(self) -> None:
        """Start the trainer's ranks once their pods are there."""
        nodes = await self._places.find()
        await self._trainer.start(nodes)
        self._places.confirmed()
        if not self._site.one_machine:
            await self._check_storage(pods=len(set(nodes)))

    async def _check_storage(self, pods: int) -> None:
        """See that the trainer's pods write checkpoints to one place. Raises `StorageNotShared`."""
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._checkpoints, prefix=".seen-") as file:
            for _ in range(_STORAGE_LOOKS):
                seen = await self._trainer.sees(Path(file.name))
                if all(seen):
                    break
                await asyncio.sleep(_STORAGE_SECONDS)
        if (warning := judge(seen, pods, str(self._checkpoints))) is not None:
            self._say(warning)

    async def _train(self, first_step: int) -> None:
        """Train on, over as many losses of the trainer as its budget allows."""
        while True:
            self._loop = TrainingLoop(
                LoopSettings(
                    self.settings.total_steps, self.job.spec.training.checkpoint.every_steps,
                    self._prompts.fingerprint,
                ),
                self._trainer, self._rollouter, self._controller, self._weights, self._ledger, self._outbox,
                self.events, self._spawn, self._step_done, self._checkpoint_written,
            )  # fmt: skip
            if self._stopping or self._places.outdated:
                self._loop.stop_asked.set()
            try:
                self.steps_done = first_step = await self._loop.run(first_step)
                if self._stopping or self.steps_done >= self.settings.total_steps:
                    return
                if self._places.outdated:
                    await self._resize(first_step)
            except TrainerDied as error:
                first_step = await self._recover(error)

    async def _resize(self, step: int) -> None:
        """Go on from the checkpoint of `step` with as many trainer workers as the RLJob asks for; engines and
        queue go on meanwhile as far as staleness allows."""
        self._may_join.clear()
        self._say(f"the trainer stops at step {step}, to be resized")
        await self._trainer.stop()
        await self._start_trainer()
        state = await self._trainer.load() or self._beginning
        if state.step != step:
            raise TrainerDied(f"the checkpoint of step {step} is not where the new trainer workers are")
        await self._push_version(self.settings.bound.version_at(step))
        self._may_join.set()
        self._say(f"the trainer goes on with {_workers(self._places.workers)}")

    async def _recover(self, error: TrainerDied) -> int:
        """Bring the trainer back from the newest checkpoint; the engines stay up. Returns its step."""
        why = "trainer restarted"
        while True:
            self._may_join.clear()
            await self._rollouter.hold(why)
            self._trainer_budget.failed(str(error))
            try:
                await self._places.drop_lost()
                await self._start_trainer()
                state = await self._trainer.load() or self._beginning
                self._say(f"{error}; the trainer goes on from step {state.step}")
                await self._restore(state, why, publish=True)
                self.checkpoint_step = state.step
                return state.step
            except TrainerDied as again:
                error = again

    def _step_done(self, result: StepMetrics, uids: tuple[int, ...], seconds: float) -> None:
        version = min((slot.version for slot in self.pool.slots if slot.entered), default=0)
        counts = self._rollouter.counts
        self._tracker.step_done(result, uids, self._outbox.samples, version, seconds, counts)
        self._site.draft.progress(self._tracker.progress)
        self.steps_done = result.step + 1
        self._on_step()

    def _checkpoint_written(self, step: int) -> None:
        self._trainer_budget.worked()
        self.checkpoint_step = step
        self._site.draft.checkpoint(step, str(folder_of(self._checkpoints, step)))

    def _engine_lost(self, slot: EngineSlot, why: str) -> None:
        self._fleet.lost(slot, why)

    async def _queue_lost(self) -> None:
        count = await self._outbox.refill()
        self._say(f"the queue host was lost and is back; {count} waiting groups were put again")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return self._tasks.create_task(work)


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"
