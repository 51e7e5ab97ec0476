"""One run of a job on its parts, from the first start of the trainer to the last step or a stop.

Guarantees:
- engines of a new job generate as soon as they are there, while its trainer starts;
- a lost trainer is brought back from the newest checkpoint (`driver.recovery`), and the run goes on;
- what the RLJob asks for while the job runs is done: other sizes of the pools, a stop when it is suspended or
  deleted; the site's status draft says how far.
"""

import asyncio
import logging
import math
from pathlib import Path

from rljob_api import RLJob
from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.driver.job_settings import JobSettings
from rljob_runtime.driver.parts import Observer, Parts
from rljob_runtime.driver.placement import StopAsked
from rljob_runtime.driver.rank_calls import TrainerDied
from rljob_runtime.driver.recovery import Recovery
from rljob_runtime.driver.stop import Standing
from rljob_runtime.driver.training_loop import LoopSettings, TrainingLoop
from rljob_runtime.groups.state import JobState
from rljob_runtime.trainer.checkpoint import folder_of, newest, step_of
from rljob_runtime.trainer.step_metrics import StepMetrics

log = logging.getLogger(__name__)


class Session:
    """See the module's guarantees."""

    def __init__(
        self,
        job: RLJob,
        settings: JobSettings,
        data: DataFingerprint,
        checkpoints: Path,
        parts: Parts,
        observer: Observer,
        began_with: str | None = None,
    ) -> None:
        """`data`: of the prompts that are trained; `checkpoints`: the folder that checkpoints are in;
        `began_with`: the digest of the weights that the run began with, which checkpoints are to record."""
        self.steps_done = 0
        """Steps that the weights have behind them, as far as it is known."""
        self.checkpoint_step = 0
        """Steps in the newest checkpoint, as far as it is known; 0 where there is none."""
        adapter = job.spec.training.adapter
        self._loop_settings = LoopSettings(
            job.spec.training.checkpoint.every_steps,
            data,
            job.spec.training.timeouts.stall_seconds,
            adapter.words if adapter is not None else None,
            settings.rollout.teacher,
            began_with,
        )
        self._total_steps = settings.total_steps
        self._checkpoints = checkpoints
        self._parts = parts
        self._observer = observer
        self._recovery = Recovery(settings, data, parts)
        self._began = False
        """Whether it is known where the job stands."""
        self._rolling: asyncio.Task[None] | None = None
        """Generates; None before it begins to."""
        self._loop: TrainingLoop | None = None
        """The loop that trains, which is told of a stop; None before the first."""

    @property
    def done(self) -> bool:
        """Whether all steps are trained."""
        return self._began and self._recovery.controller.done

    @property
    def standing(self) -> Standing:
        """Where it stands, for somebody who wants it to stop."""
        training = self._loop is not None and self._loop.training
        # It is known only then whether a checkpoint is gone on from.
        steps = self.steps_done if self._began else self.checkpoint_step
        return Standing(self._began, steps, self.checkpoint_step, training)

    async def run(self, resume: bool) -> None:
        """Train to the end or to a stop; with `resume` from the newest checkpoint on."""
        parts = self._parts
        if resume and (found := newest(self._checkpoints)) is not None:
            self.checkpoint_step = step_of(found)
            # Whoever ends this attempt before it writes one has to know that there is one.
            parts.site.draft.checkpoint(self.checkpoint_step, str(found))
        # Before pods are waited for, which may take long: a job that goes on must not look like a new one.
        parts.site.draft.stands_at(self.checkpoint_step, self._total_steps)
        # From here on, since a stop or another size may be asked for while pods are waited for.
        following = parts.spawn(self._follow())
        try:
            state = await self._recovery.resume() if resume else await self._begin_anew()
            self.steps_done = self.checkpoint_step = state.step
            self._began = True
            self._observer.begins(parts, state.step)
            if self._rolling is None:
                self._rolling = parts.spawn(self._roll())
            await parts.fleet.started(lambda: parts.stop.asked)
            parts.rollouter.waits_from = parts.events.clock()
            await self._train(state.step)
        except StopAsked:
            log.info("stopped while waiting for pods")
        finally:
            if self._rolling is not None:
                self._rolling.cancel()
        # Where this is not reached the error ends the task too, through the group that it was spawned in.
        following.cancel()
        # With all steps done the job is complete, and not suspended.
        if parts.site.desired().suspend and not self.done:
            parts.site.draft.suspended_at(self.checkpoint_step)
        # The report, which is begun next, reads what was recorded from its files.
        parts.flush_records()
        self._observer.trained()

    async def _begin_anew(self) -> JobState:
        """Start the trainer of a new job, while its engines generate for it."""
        parts = self._parts
        state = await self._recovery.begin()
        # What engines wait for until the trainer is there, no bound makes them wait for.
        parts.rollouter.waits_from = math.inf
        self._rolling = parts.spawn(self._roll())
        await self._recovery.start()
        return state

    async def _roll(self) -> None:
        """Generate, once the engines are there, until cancelled."""
        await self._parts.fleet.started(lambda: self._parts.stop.asked)
        await self._parts.rollouter.run()

    async def _follow(self) -> None:
        """Do what the RLJob asks for while the job runs, until cancelled."""
        parts, site = self._parts, self._parts.site
        while True:
            desired = site.desired()
            parts.fleet.adjust()
            if (desired.suspend or desired.deleted) and not parts.stop.asked:
                parts.say("the job is deleted" if desired.deleted else "the job is to be suspended")
                parts.stop.ask()
            if (parts.stop.asked or parts.placement.outdated) and self._loop is not None:
                self._loop.stop_asked.set()
            # After the changes: the operator takes what is released for an answer to this generation.
            site.draft.acted_on(desired.generation)
            # No deadline: it waits for news, of which there may be none; `run` ends it.
            await site.changes.wait()

    async def _train(self, first_step: int) -> None:
        """Train on, over as many losses of the trainer as its budget allows."""
        parts = self._parts
        while True:
            self._loop = loop = TrainingLoop(
                self._loop_settings, parts.trainer, parts.rollouter, self._recovery.controller, parts.sync,
                self._recovery.ledger, parts.outbox, parts.events, parts.spawn, parts.activity,
                self._step_done, self._checkpoint_written, self._before_checkpoint, self._step_begins,
                parts.evaluations, parts.curriculum,
            )  # fmt: skip
            # What was asked for while there was no loop.
            if parts.stop.asked or parts.placement.outdated:
                loop.stop_asked.set()
            self._observer.training(first_step)
            try:
                self.steps_done = first_step = await loop.run(first_step)
                if parts.stop.asked or self.done:
                    return
                # Else the size was changed back meanwhile, and another loop goes on from here.
                if parts.placement.outdated:
                    self._observer.interrupted("trainer resized")
                    await self._recovery.resize(first_step)
            except TrainerDied as error:
                self._observer.interrupted("trainer lost", str(error))
                first_step = (await self._recovery.trainer_lost(error)).step
                self.checkpoint_step = first_step

    def _step_begins(self, step: int, uids: tuple[int, ...], last: bool) -> None:
        # First: it may refuse the step, which then does not begin.
        self._parts.rewards.to_train(step, uids, last)
        self._parts.says.step_begins(step, uids)
        self._observer.step_begins(uids)

    def _step_done(self, metrics: StepMetrics, uids: tuple[int, ...], seconds: float) -> None:
        parts = self._parts
        version = min((slot.version for slot in parts.pool.slots if slot.entered), default=0)
        self.steps_done = metrics.step + 1
        self._observer.step_done(metrics, uids, parts.outbox.samples, version, seconds)
        parts.says.step_done()

    def _before_checkpoint(self) -> None:
        # What a checkpoint covers is not generated again: it is in the files then.
        self._parts.lengths.flush()
        self._parts.says.flush()

    def _checkpoint_written(self, step: int) -> None:
        self._recovery.checkpoint_written()
        self.checkpoint_step = step
        self._parts.site.draft.checkpoint(step, str(folder_of(self._checkpoints, step)))
