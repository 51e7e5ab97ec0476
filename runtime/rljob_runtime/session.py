"""One run of a job, from its parts: starts them, keeps them going, takes them down.

Guarantees:
- nothing heavy starts before data, tokenizer and model are there;
- a lost trainer, queue host or rollout worker is replaced: the trainer goes on from the newest checkpoint,
  the queue is filled again from the groups that are kept, requests move to other engines; what keeps failing
  ends the job;
- whatever happens, every part that was started is ended.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rljob_api import RLJob
from rljob_runtime import local_ray
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.device_share import device_share
from rljob_runtime.engine_pool import EnginePool, EngineSlot
from rljob_runtime.fleet import Fleet
from rljob_runtime.job_plan import JobPlan
from rljob_runtime.ledger import Ledger
from rljob_runtime.model_folder import checkpoint_root, engine_model
from rljob_runtime.outbox import Outbox
from rljob_runtime.queue_service import QueueService
from rljob_runtime.ray_trainer import RayTrainer, TrainerDied
from rljob_runtime.restarts import RestartBudget
from rljob_runtime.rewards.pool import RewardPool
from rljob_runtime.rollout_workers import RolloutWorkers
from rljob_runtime.rollouter import Rollouter
from rljob_runtime.run_folder import RunOptions
from rljob_runtime.scorer import PoolScorer
from rljob_runtime.staleness import StalenessController
from rljob_runtime.trace.events import EVENTS_FOLDER, EventLog
from rljob_runtime.tracker import Tracker
from rljob_runtime.trainer.checkpoint import newest
from rljob_runtime.trainer.metrics import StepMetrics
from rljob_runtime.training_loop import JobState, LoopSettings, TrainingLoop
from rljob_runtime.weights.shm import choose_root
from rljob_runtime.weights.sync import EngineSync, Pull, Push

log = logging.getLogger(__name__)

_PUT_SECONDS = 1800.0
_START_SECONDS = 900.0
_SYNC_SECONDS = 300.0
_DRAIN_SECONDS = 3600.0
_BEGINNING = JobState(step=0, ledger=Ledger(), waiting=[])


class Session:
    """See the module's guarantees."""

    def __init__(
        self,
        job: RLJob,
        options: RunOptions,
        plan: JobPlan,
        tokenizer: TextTokenizer,
        prompts: PromptSource,
        say: Callable[[str], None],
    ) -> None:
        """`say` tells a person, in one line."""
        self.job = job
        self.plan = plan
        self.steps_done = 0
        self._options = options
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._say = say
        self._loop: TrainingLoop | None = None
        self._stopping = False
        folder = options.folder / EVENTS_FOLDER if job.spec.training.profiling.events else None
        self._events_folder = folder
        self.events = EventLog(folder, 0, "driver", "driver")
        self.pool = EnginePool(time.time, self._engine_lost)

    def stop(self) -> None:
        """Stop after the step that is being trained, with a checkpoint."""
        self._stopping = True
        if self._loop is not None:
            self._loop.stop_asked.set()

    async def run(
        self, tracker_for: Callable[[EnginePool, int], Tracker], on_step: Callable[[], None]
    ) -> None:
        """Train to the end or to a stop. `tracker_for` makes the tracker once the first step is known;
        `on_step` is called after each step."""
        async with AsyncExitStack() as stack:
            self._tasks = await stack.enter_async_context(asyncio.TaskGroup())
            await self._assemble(stack)
            starting = self._tasks.create_task(self._fleet.start(), name="fleet")
            await self._trainer.start()
            state = await self._trainer.load() if self._options.resume else None
            self._tracker = tracker_for(self.pool, state.step if state else 0)
            self._on_step = on_step
            await self._restore(state or _BEGINNING, publish=state is not None)
            await starting
            rolling = self._tasks.create_task(self._rollouter.run(), name="rollouter")
            await self._train(state.step if state else 0)
            rolling.cancel()
            # Before the trainer, whose weights a worker that is just starting would miss.
            await self._fleet.close()

    async def _assemble(self, stack: AsyncExitStack) -> None:
        """Make every part; the heavy ones start later."""
        training, plan = self.job.spec.training, self.plan
        model_folder = await asyncio.to_thread(engine_model, self.job, self._options, self._tokenizer)
        stack.callback(self.events.flush)
        self._queue = QueueService(plan.capacity_samples, self._spawn, self._queue_lost)
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
            plan.rollout, self.pool, self._controller, self._prompts.prompt, iter(()), scorer, self._outbox,
            self.events,
        )  # fmt: skip
        stack.callback(lambda: log.info("at the end: %s", self._rollouter.counters))
        weights_root = self._weights_root(model_folder)
        share = device_share(self.job, local_ray.devices(), self._options.share)
        self._trainer = RayTrainer(
            self.job, plan, model_folder, self._options, self._queue, self._events_folder, weights_root, share
        )
        self._trainer_budget = RestartBudget("the trainer")
        stack.push_async_callback(self._trainer.close)
        sync = EngineSync(self.pool, _SYNC_SECONDS, _DRAIN_SECONDS)
        self._weights = Push(sync, plan.in_flight) if plan.in_flight else Pull(sync, self._spawn)
        self._may_join = asyncio.Event()
        workers = RolloutWorkers(self.job, model_folder, self._tokenizer, share)
        stack.callback(workers.close)
        self._fleet = Fleet(
            workers.seats(self._events_folder, first_rank=1 + plan.trainer_ranks), workers.make, self.pool,
            lambda: self._weights.newest, self._push_again, self._may_join, self._spawn, self._say,
            _START_SECONDS, time.time,
        )  # fmt: skip
        stack.push_async_callback(self._fleet.close)

    def _weights_root(self, model_folder: Path) -> Path:
        """Where published versions go."""
        size = sum(path.stat().st_size for path in model_folder.glob("*.safetensors"))
        return choose_root(f"{self.job.metadata.name}-{os.getpid()}", self._options.folder, 4, size)

    def _new_controller(self, ledger: Ledger) -> StalenessController:
        plan = self.plan
        return StalenessController(plan.bound, plan.total_groups, len(ledger), plan.capacity_groups)

    async def _restore(self, state: JobState, publish: bool) -> None:
        """Put every part where `state` says; no group is open. `publish` where the engines hold other
        weights than the trainer."""
        self._ledger = state.ledger.copy()
        self._controller = self._new_controller(self._ledger)
        await self._queue.reset(self._ledger)
        groups = await self._outbox.restore(state.waiting)
        for group in groups:
            self._controller.dispatched(group.uid, group.dispatch_version)
            self._controller.put(group.uid)
        waiting = {group.uid for group in groups}
        self._rollouter.restart(self._controller, self._ledger.remaining(self.plan.total_groups, waiting))
        self.pool.step = state.step
        if publish:
            await self._push_version(self.plan.bound.version_at(state.step))
        self._may_join.set()

    async def _push_version(self, version: int) -> None:
        """Give all engines the trainer's weights as `version`."""
        ref = await self._trainer.publish(version)
        await self._weights.publish(ref, None if ref.transport == "shm" else self._trainer.transmit)

    async def _push_again(self) -> None:
        newest = self._weights.newest
        if newest is not None:
            await self._push_version(newest.version)

    async def _train(self, first_step: int) -> None:
        """Train on, over as many losses of the trainer as its budget allows."""
        while True:
            self._loop = TrainingLoop(
                LoopSettings(self.plan.total_steps, self.job.spec.training.checkpoint.every_steps),
                self._trainer, self._rollouter, self._controller, self._weights, self._ledger, self._outbox,
                self.events, self._spawn, self._step_done, self._checkpoint_written,
            )  # fmt: skip
            if self._stopping:
                self._loop.stop_asked.set()
            try:
                self.steps_done = await self._loop.run(first_step)
                return
            except TrainerDied as error:
                first_step = await self._recover(error)

    async def _recover(self, error: TrainerDied) -> int:
        """Bring the trainer back from the newest checkpoint; the engines stay up. Returns its step."""
        await self._rollouter.cancel_groups("trainer restarted")
        while True:
            self._trainer_budget.failed(str(error))
            try:
                await self._trainer.restart()
                state = await self._trainer.load() or _BEGINNING
                self._say(f"{error}; the trainer goes on from step {state.step}")
                await self._restore(state, publish=True)
                return state.step
            except TrainerDied as again:
                error = again

    def _step_done(self, result: StepMetrics, uids: tuple[int, ...], seconds: float) -> None:
        version = min((slot.version for slot in self.pool.slots), default=0)
        self._tracker.step_done(result, uids, self._outbox.samples, version, seconds)
        self.steps_done = result.step + 1
        self._on_step()

    def _checkpoint_written(self, step: int) -> None:
        self._trainer_budget.worked()

    def _engine_lost(self, slot: EngineSlot, why: str) -> None:
        self._fleet.lost(slot, why)

    async def _queue_lost(self) -> None:
        count = await self._outbox.refill()
        self._say(f"the queue host was lost and is back; {count} waiting groups were put again")

    def newest_checkpoint(self) -> Path | None:
        """Folder of the newest checkpoint, if there is one."""
        return newest(checkpoint_root(self.job, self._options.folder, self._options.manifest_folder))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return self._tasks.create_task(work)
