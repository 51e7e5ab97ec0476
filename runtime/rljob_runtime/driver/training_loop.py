"""The loop that trains: it waits for a batch, trains it, publishes weights, keeps checkpoints.

Guarantees:
- step s trains exactly the groups that staleness control selected for it, once;
- a checkpoint holds one consistent cut: the weights after step s, which prompts are trained, and every
  finished group that waits, so that a restart trains each remaining prompt exactly once;
- a stop that was asked for takes effect between two steps, after a checkpoint;
- an engine that falls silent while others generate is started again, whatever the loop is at;
- an evaluation is of one set of weights: its engines get others when it is over, and a checkpoint of a later
  step is written then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.driver.evaluation_turn import Evaluating, EvaluationTurn
from rljob_runtime.driver.first_of import first_of
from rljob_runtime.driver.rank_calls import TrainerDied
from rljob_runtime.driver.silent_engines import SilentEngines
from rljob_runtime.driver.stall import Activity, Stalled, StallWatch
from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.groups.curriculum import Curriculum
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.staleness import StalenessController
from rljob_runtime.groups.state import JobState
from rljob_runtime.rollout.broadcast import Broadcaster
from rljob_runtime.rollout.rollouter import Rollouter
from rljob_runtime.rollout.weight_sync import WeightSync
from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.weights.transport import STORED

_LOOKS = 10
"""How often it is looked whether anything moves, in the time after which a step is stalled."""


class Trainer(Broadcaster, Protocol):
    """What the loop needs of the trainer."""

    async def step(self, step: int, version: int, uids: Sequence[int]) -> Any:
        """Train these groups, taken from the queue by uid, and acknowledge them; the step's metrics."""
        ...

    @property
    def stores(self) -> bool:
        """Whether versions are stored, so that engines load them while the trainer goes on."""
        ...

    async def publish(self, version: int) -> None:
        """Make the current weights `version`; a step may begin then, unless they are not stored."""
        ...

    async def ref(self, version: int) -> WeightRef:
        """Where engines get the version that was published last, once they can."""
        ...

    async def save(self, step: int, state: bytes) -> None:
        """Write a checkpoint after `step` steps; whole or not at all."""
        ...


class WaitingGroups(Protocol):
    """The finished groups that are not trained yet, each kept until it is trained."""

    def frames(self) -> list[bytes]:
        """All groups that wait, in wire form."""
        ...

    def taken(self, step: int, uids: Sequence[int]) -> None:
        """Step `step` begins to train the groups of these uids."""
        ...

    def forget(self, uids: Sequence[int]) -> None:
        """The groups of these uids are trained, and need not be kept."""
        ...


@dataclass(frozen=True)
class LoopSettings:
    """What the loop needs of the RLJob."""

    checkpoint_every: int
    data: DataFingerprint
    """The prompts' fingerprint, which checkpoints record."""
    stall_seconds: float = 1800.0
    """How long a step may wait for its groups while nothing moves (`driver.stall`);
    spec.training.timeouts.stallSeconds."""
    adapter: str | None = None
    """The adapter that is trained, in words, which checkpoints record; None where the whole model is."""
    teacher: str | None = None
    """The served model that it learns from; None without one."""
    began_with: str | None = None
    """The digest of the weights that the run began with, which checkpoints record; None where it was not
    taken."""


class TrainingLoop:
    """See the module's guarantees."""

    def __init__(
        self,
        settings: LoopSettings,
        trainer: Trainer,
        rollouter: Rollouter,
        controller: StalenessController,
        plan: WeightSync,
        ledger: Ledger,
        waiting: WaitingGroups,
        events: EventLog,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        activity: Callable[[], Awaitable[Activity]],
        on_step: Callable[[Any, tuple[int, ...], float], None],
        on_checkpoint: Callable[[int], None] = lambda step: None,
        before_checkpoint: Callable[[], None] = lambda: None,
        on_batch: Callable[[int, tuple[int, ...], bool], None] = lambda step, uids, last: None,
        evaluating: Evaluating | None = None,
        curriculum: Curriculum | None = None,
    ) -> None:
        """`plan` brings a published version to the engines; `spawn` starts a task whose failure ends the job;
        `activity` tells what has been done for groups so far. `on_batch` is given each step, the uids of
        its groups, and whether it is the job's last one, before they are trained; what it raises ends the
        job. `on_step` is given each step's metrics, the uids of its groups, and the seconds that the trainer
        was at it; `on_checkpoint` how many steps a new checkpoint holds. `before_checkpoint` is called when
        nothing has been recorded of a checkpoint yet: what it writes down covers all that is recorded.
        `evaluating`: the job's evaluations; None where it has none. `curriculum`: which prompts are trained
        next; None: all in their order."""
        self.stop_asked = asyncio.Event()
        self.training = False
        """Whether a step is being trained."""
        self._settings = settings
        self._trainer = trainer
        self._rollouter = rollouter
        self._controller = controller
        self._plan = plan
        self._ledger = ledger
        self._waiting = waiting
        self._events = events
        self._activity = activity
        self._on_step = on_step
        self._on_checkpoint = on_checkpoint
        self._before_checkpoint = before_checkpoint
        self._on_batch = on_batch
        self._spawn = spawn
        self._curriculum = curriculum
        self._saved = -1
        """Steps in the checkpoint that the loop began from, or wrote last."""
        self._pushing: asyncio.Task[None] | None = None
        """Brings the newest stored version to the engines while the next step trains."""
        self._lost: TrainerDied | None = None
        """Why it could not: the trainer is gone."""
        self._sent = 0, 0
        """The steps behind the weights that engines got last, and the version by which they know them."""
        self._silent = SilentEngines(rollouter.pool, settings.stall_seconds)
        self._turn: EvaluationTurn | None = None
        if evaluating is not None:
            self._turn = EvaluationTurn(
                evaluating, rollouter.pool, plan, spawn, activity, settings.stall_seconds, self._silent
            )

    async def run(self, first_step: int) -> int:
        """Train from `first_step` to the end, or until a stop is asked for. Returns the steps done."""
        self._saved = first_step
        self._sent = first_step, self._controller.bound.version_at(first_step)
        watching = self._spawn(self._silent.run())
        try:
            return await self._run(first_step)
        finally:
            watching.cancel()
            if self._turn is not None:
                await self._turn.give_up()

    async def _run(self, step: int) -> int:
        self._evaluate(last=self._controller.done)
        while not self._controller.done and not self.stop_asked.is_set():
            uids = await self._batch(step)
            if uids is None:
                break
            self._on_batch(step, uids, self._controller.steps_left == 1)
            await self._train(step, uids)
            step += 1
            last = self._controller.done
            # Before the checkpoint, so that engines load while it is written. After the last step nobody
            # generates.
            if not last and step % self._controller.bound.steps_per_version == 0:
                await self._publish(step, step // self._controller.bound.steps_per_version)
                self._evaluate(last=False)
            if last or step % self._settings.checkpoint_every == 0:
                await self._save(step)
        # After a stop.
        if step != self._saved:
            await self._save(step)
        if self._controller.done:
            await self._evaluate_last(step)
        if self._pushing is not None:
            # The trainer may be stopped now, and its weights go with it. Each engine's part has a deadline.
            await self._pushing
        return step

    async def _batch(self, step: int) -> tuple[int, ...] | None:
        """The groups of this step; None when a stop was asked for while waiting. Where nothing moves, engines
        that stand still with requests are started again. Raises `Stalled` where that does not help."""
        ready, stall_seconds = self._rollouter.group_ready, self._settings.stall_seconds
        # Not the events' clock, which is the machine's and may jump.
        clock = asyncio.get_running_loop().time
        watch = StallWatch(stall_seconds, clock())
        why: str | None = None
        with self._events.span("idle", step, why="groups"):
            while True:
                # Before the look: a group that becomes ready after it ends the wait.
                ready.clear()
                if self._lost is not None:
                    raise self._lost
                uids = self._controller.select(step)
                if uids is not None:
                    return uids
                # Engines tell of tokens only when they are asked: a look now and then.
                ended = await first_of(stall_seconds / _LOOKS, ready.wait(), self.stop_asked.wait())
                # The second wait: the stop.
                if ended == 1:
                    return None
                if ended is not None:
                    continue
                self._deliver_again()
                if watch.stalled(await self._activity(), clock()):
                    if why is not None:
                        raise Stalled(why)
                    # Once in a step: where the engines are not what is wrong, others are no better.
                    stuck = self._silent.stuck()
                    why = self._why_stalled(step, len(stuck))
                    self._rollouter.pool.lose_stuck(
                        stuck,
                        f"generated nothing for {stall_seconds:g} s (spec.training.timeouts.stallSeconds)",
                    )
                    watch = StallWatch(stall_seconds, clock())

    def _why_stalled(self, step: int, stuck: int) -> str:
        """Why the job ends if it does not help to start so many engines again: how it stands before that."""
        controller, slots = self._controller, self._rollouter.pool.slots
        again = (
            f", {stuck} of them stood still with requests; these were started again, and the same happened "
            "once more"
        )
        return (
            f"step {step_number(step)}: for {self._settings.stall_seconds:g} s no engine generated a token, "
            "no reward came back and no group was completed (spec.training.timeouts.stallSeconds): "
            f"{controller.ready} groups ready, {controller.outstanding} outstanding, "
            f"{controller.batch_size()} needed, {len(slots)} engines{again if stuck else ''}"
        )

    async def _train(self, step: int, uids: tuple[int, ...]) -> None:
        version = self._controller.bound.version_at(step)
        self._waiting.taken(step, uids)
        self._rollouter.taken(step, uids)
        began = self._events.clock()
        self.training = True
        try:
            result = await self._trainer.step(step, version, uids)
        finally:
            self.training = False
        seconds = self._events.clock() - began
        # Without an await between them: whoever looks finds the groups either waiting or trained.
        self._controller.finished(uids)
        self._ledger.record(uids)
        self._waiting.forget(uids)
        self._rollouter.pool.step = step + 1
        # Their places in the queue are free: admission may have room.
        self._rollouter.poke()
        self._on_step(result, uids, seconds)

    def _evaluate(self, last: bool) -> None:
        """The engines get, or have, the weights that were sent last: evaluate them, if that is due."""
        if self._turn is not None and not self.stop_asked.is_set():
            self._turn.begin(*self._sent, last, self._pushing)

    async def _evaluate_last(self, step: int) -> None:
        """Nothing is trained any more: evaluate what was learned, and wait until that is done."""
        if self._turn is None:
            return
        await self._evaluation_over()
        if self._sent[0] != step and not self.stop_asked.is_set():
            # Rounded up: a version of its own, also where no step more would have made it whole.
            await self._publish(step, -(-step // self._controller.bound.steps_per_version))
            # No step follows that would miss the trainer, where it is lost before engines have its version.
            await self._pushed()
        self._evaluate(last=True)
        await self._evaluation_over()

    async def _evaluation_over(self) -> None:
        """Wait until no evaluation is under way."""
        if self._turn is not None and self._turn.step is not None:
            with self._events.span("evaluation_wait", self._rollouter.pool.step):
                await self._turn.over(self.stop_asked)

    async def _may_deliver(self, step: int) -> None:
        """Wait until engines may get the weights after `step` steps."""
        if self._turn is not None and self._turn.holds_up(step):
            with self._events.span("evaluation_wait", self._rollouter.pool.step):
                await self._turn.lets_through(step, self.stop_asked)

    async def _publish(self, step: int, version: int) -> None:
        """Publish the weights after `step` steps, and let the engines load while the next step trains (a
        collective transport needs the trainer until they have loaded)."""
        await self._pushed()
        await self._may_deliver(step)
        with self._events.span("weight_publish", self._rollouter.pool.step):
            await self._trainer.publish(version)
        self._sent = step, version
        if self._trainer.stores:
            self._pushing = self._spawn(self._push_stored(version))
        else:
            await self._push(await self._trainer.ref(version), self._trainer)

    async def _push_stored(self, version: int) -> None:
        """Deliver a version once it is stored, beside the next step."""
        try:
            ref = await self._trainer.ref(version)
        except TrainerDied as error:
            # For the loop, whose caller starts the trainer again. It may wait for groups that engines cannot
            # generate without this version.
            self._lost = error
            self._rollouter.group_ready.set()
            return
        await self._push(ref, None)

    async def _push(self, ref: WeightRef, broadcaster: Broadcaster | None) -> None:
        await self._plan.deliver(ref, broadcaster)
        self._rollouter.poke()

    def _deliver_again(self) -> None:
        """Where engines could not get the newest version, for it may have been the network, let them try
        again. Admission goes by the oldest one that engines hold: with a small bound no step might ever come
        that would bring the next version."""
        newest, slots = self._plan.newest, self._rollouter.pool.training_slots
        under_way = self._pushing is not None and not self._pushing.done()
        if under_way or newest is None or newest.transport not in STORED:
            return
        if any(slot.entered and slot.version != newest.version for slot in slots):
            # Beside the wait: fetching may take as long as its deadline, and the groups may be ready before.
            self._pushing = self._spawn(self._push_again())

    async def _push_again(self) -> None:
        await self._plan.retry()
        self._rollouter.poke()

    async def _pushed(self) -> None:
        """Wait until the engines have the newest stored version. Raises `TrainerDied`."""
        if self._pushing is not None:
            await self._pushing
        if self._lost is not None:
            raise self._lost

    async def _save(self, step: int) -> None:
        if self._turn is not None and self._turn.step != step:
            # A restart from the checkpoint would not come to an earlier one again.
            await self._evaluation_over()
        # Without an await up to the state: a group that the checkpoint keeps is never generated again.
        self._before_checkpoint()
        state = JobState(
            step,
            self._ledger.copy(),
            self._waiting.frames(),
            self._rollouter.counts.copy(),
            self._settings.data,
            self._controller.bound.steps_per_version,
            self._curriculum.state(self._ledger) if self._curriculum is not None else None,
            self._settings.adapter,
            self._settings.teacher,
            self._settings.began_with,
        )
        with self._events.span("checkpoint", step):
            await self._trainer.save(step, msgspec.msgpack.encode(state))
        self._saved = step
        self._on_checkpoint(step)
