"""Brings a job to where it stands: at its start, after the trainer was lost, with another trainer size.

Guarantees:
- all parts agree afterwards: trainer, queue, kept groups, counts, and the version that engines hold;
- no group is dispatched before that, and no engine joins with weights of steps that do not count. A new job
  stands at its beginning before its trainer has started: engines start with the weights that it begins with;
- each failure of the trainer, its first start included, is charged to one budget: one that keeps failing
  without a checkpoint in between ends the job (`GivenUp`).
"""

from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.driver.job_settings import JobSettings
from rljob_runtime.driver.parts import Parts
from rljob_runtime.driver.rank_calls import TrainerDied
from rljob_runtime.driver.reward_failures import has_reward
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.groups.curriculum import CurriculumState
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.state import JobState
from rljob_runtime.restarts import RestartBudget
from rljob_runtime.samples import decode_group


class Recovery:
    """See the module's guarantees."""

    def __init__(self, settings: JobSettings, data: DataFingerprint, parts: Parts) -> None:
        """`data`: of the prompts that the job trains."""
        self.ledger = Ledger()
        """The prompts that are done."""
        self.controller = settings.controller(self.ledger)
        self._settings = settings
        self._parts = parts
        self._budget = RestartBudget("the trainer")
        self._beginning = JobState(0, Ledger(), [], GroupCounts(), data)

    async def begin(self) -> JobState:
        """A new job, at its beginning; groups may be dispatched from now on. `start` is to follow."""
        state = self._beginning
        await self._restore(state, "", send=False)
        return state

    async def start(self) -> None:
        """Start the trainer of a new job. Raises `GivenUp`, `StopAsked`, `NoTrainerPods`."""
        while True:
            try:
                return await self._parts.start_trainer()
            except TrainerDied as error:
                await self._failed_start(error)

    async def resume(self) -> JobState:
        """Start the trainer of a job that goes on; where it stands: at its newest checkpoint, or at its
        beginning where it has none. Raises `GivenUp`, `StopAsked`, `NoTrainerPods`."""
        parts = self._parts
        while True:
            try:
                await parts.start_trainer()
                state = await parts.trainer.load() or self._beginning
                parts.rollouter.counts = state.counts.copy()
                # Engines start with the job's initial weights, which is what its beginning has.
                await self._restore(state, "job resumed", send=state is not self._beginning)
                return state
            except TrainerDied as error:
                await self._failed_start(error)

    async def trainer_lost(self, error: TrainerDied) -> JobState:
        """Bring the trainer back from the newest checkpoint; the engines stay up. Where the job stands then.
        Raises `GivenUp`, `StopAsked`, `NoTrainerPods`."""
        parts, reason = self._parts, "trainer restarted"
        while True:
            # Anew after each failure: an engine that came now would load weights of steps that do not count.
            parts.delivery.may_join.clear()
            await parts.rollouter.hold(reason)
            self._budget.failed(str(error))
            try:
                await parts.placement.drop_lost()
                await parts.start_trainer()
                state = await parts.trainer.load() or self._beginning
                parts.say(f"{error}; the trainer goes on from step {state.step}")
                await self._restore(state, reason, send=True)
                return state
            except TrainerDied as again:
                error = again

    async def resize(self, step: int) -> None:
        """Go on from the checkpoint of `step` with as many trainer workers as the RLJob asks for. Engines and
        queue go on meanwhile, as far as staleness allows. Raises `TrainerDied`."""
        parts = self._parts
        parts.delivery.may_join.clear()
        parts.say(f"the trainer stops at step {step}, to be resized")
        await parts.trainer.stop()
        await parts.start_trainer()
        state = await parts.trainer.load() or self._beginning
        if state.step != step:
            raise TrainerDied(f"the checkpoint of step {step} is not where the new trainer workers are")
        # Also to engines that have this version: where it was stored, or who would send it to newcomers, went
        # with the ranks before.
        await parts.delivery.send(self._settings.bound.version_at(step))
        parts.delivery.may_join.set()
        workers = parts.placement.workers
        parts.say(f"the trainer goes on with {workers} worker{'' if workers == 1 else 's'}")

    def checkpoint_written(self) -> None:
        """The trainer did its work: its next failure is not one in a row."""
        self._budget.worked()

    async def _failed_start(self, error: TrainerDied) -> None:
        """The first start has failed: it may be tried again. Raises `GivenUp`."""
        self._budget.failed(str(error))
        self._parts.say(f"{error}; the trainer is started again")
        # Before pods are looked for: the table may still show a node that went with its rank.
        await self._parts.placement.drop_lost()

    async def _restore(self, state: JobState, reason: str, send: bool) -> None:
        """Bring queue, kept groups, counts and engines to `state`, where the trainer is already, or will
        start; no group is under way. `reason` is counted for each group that is given up. `send`: whether the
        engines may hold other weights than the trainer. Dispatch begins when all of it is done."""
        parts = self._parts
        # Without the groups that have no reward: after an outage of the judge they would only end the job
        # once more. Their prompts are generated and scored again.
        waiting = [frame for frame in state.waiting if has_reward(decode_group(frame))]
        self.ledger = ledger = state.ledger.copy()
        parts.rollouter.counts.went_back(
            ledger.trained + len(waiting), ledger.refused, reason, ledger.refused_pass_rate
        )
        self.controller = self._settings.controller(ledger)
        # First the outbox: a queue host that comes back meanwhile is filled from it.
        groups = parts.outbox.restore(waiting)
        kept = {group.uid for group in groups}
        # The others are generated again, and recorded then.
        parts.lengths.begin(lambda uid: uid in self.ledger or uid in kept)
        parts.says.begin(state.step)
        if parts.evaluations is not None:
            parts.evaluations.begin(state.step)
        if parts.curriculum is not None:
            parts.curriculum.restore(state.curriculum or CurriculumState())
        await parts.queue.reset(self.ledger)
        await parts.outbox.refill()
        for group in groups:
            self.controller.dispatched(group.uid, group.dispatch_version)
            self.controller.put(group.uid)
            # As if it were scored now: the first step may get no groups but those of the checkpoint.
            parts.rewards.scored(group.uid, [sample.failure for sample in group.samples])
        if state.step:
            # A job whose rewards have never worked trains no step.
            parts.rewards.worked_before()
        parts.pool.step = state.step
        version = self._settings.bound.version_at(state.step)
        if send:
            await parts.delivery.send(version)
        # At once: an engine that came during the sending asks for the weights when that has ended.
        parts.delivery.may_join.set()
        if send:
            await parts.sync.settled()
            parts.pool.lose_newer(version)
        parts.rollouter.restart(self.controller, ledger, ledger.remaining(self._settings.uids, kept))
