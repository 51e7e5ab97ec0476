"""The running parts of a job, as one value: what a `Session` works with. Made by `driver.assemble`."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rljob_runtime.driver.evaluations import Evaluations
from rljob_runtime.driver.reward_failures import RewardFailures
from rljob_runtime.driver.sample_keeper import SampleKeeper
from rljob_runtime.driver.stall import Activity
from rljob_runtime.driver.stop import StopRequest
from rljob_runtime.driver.training_loop import Trainer
from rljob_runtime.driver.weight_delivery import Publisher, WeightDelivery
from rljob_runtime.fleet.fleet import Fleet
from rljob_runtime.groups.curriculum import Curriculum
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.state import JobState
from rljob_runtime.rollout.outbox import Outbox
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.rollouter import Rollouter
from rljob_runtime.rollout.weight_sync import Pull, Push
from rljob_runtime.site.site import Site
from rljob_runtime.trace.analyse.worker_starts import WorkerStart
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.trace.record.length_log import LengthLog
from rljob_runtime.trace.record.start_log import Cause

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
"""Starts a task whose failure ends the job."""


class JobTrainer(Trainer, Publisher, Protocol):
    """The trainer as a `Session` needs it: it trains and publishes, is stopped and brought back."""

    async def load(self) -> JobState | None:
        """Load the newest checkpoint into the ranks. Returns where the job stood when it was written; None
        where there is none. Raises `TrainerDied`."""
        ...

    async def stop(self) -> None:
        """End the ranks; `start_trainer` may follow."""
        ...


class Placement(Protocol):
    """Which pods the trainer's ranks run on."""

    workers: int
    """Trainer workers that run; 0 before the first start."""

    @property
    def outdated(self) -> bool:
        """Whether the RLJob asks for another number of workers than run."""
        ...

    async def drop_lost(self) -> None:
        """After a loss: wait until it is known which nodes are gone."""
        ...


class JobQueue(Protocol):
    """The sample queue, of which a `Session` needs no more than this."""

    async def reset(self, ledger: Ledger) -> None:
        """Empty it; the groups of `ledger` are trained and are not taken again."""
        ...


@dataclass(frozen=True)
class Parts:
    """The parts. All of them live as long as the context that made them."""

    site: Site
    stop: StopRequest
    events: EventLog
    """Records the driver's own events."""
    lengths: LengthLog
    """Records how long responses are."""
    pool: EnginePool
    queue: JobQueue
    outbox: Outbox
    rollouter: Rollouter
    rewards: RewardFailures
    trainer: JobTrainer
    placement: Placement
    start_trainer: Callable[[], Awaitable[None]]
    """Starts new ranks with the job's initial weights, once there are pods for them. Raises `TrainerDied`."""
    says: SampleKeeper
    """Keeps what the model says."""
    sync: Push | Pull
    delivery: WeightDelivery
    fleet: Fleet
    activity: Callable[[], Awaitable[Activity]]
    """Returns what has been done for groups so far."""
    spawn: Spawn
    say: Callable[[str], None]
    """Tells a person, in one line."""
    evaluations: Evaluations | None = None
    """None where the job has none."""
    curriculum: Curriculum | None = None
    """Which prompts are trained next; None: all in their order."""
    starts: dict[str, WorkerStart] = field(default_factory=dict)
    """The newest start of each engine and rank, by its name."""

    def flush_records(self) -> None:
        """Write what is buffered of the driver's events, of those that it records for the engines, of the
        responses' lengths, and of what the model says."""
        self.events.flush()
        self.lengths.flush()
        self.says.flush()
        self.fleet.flush_events()


class Observer(Protocol):
    """Is told how a session goes: its beginning, its steps, interruptions, its end."""

    def begins(self, parts: Parts, first_step: int) -> None:
        """The trainer holds the weights after `first_step` steps; the engines come up."""
        ...

    def training(self, step: int) -> None:
        """Trainer and engines are ready: training begins, or goes on after an interruption, with `step`."""
        ...

    def interrupted(self, cause: Cause, why: str = "") -> None:
        """Training stops, and goes on with the next `training`; `why`: what broke, in words."""
        ...

    def step_begins(self, uids: Sequence[int]) -> None:
        """The trainer begins with a step of these groups, which are complete and wait in the outbox."""
        ...

    def step_done(
        self, metrics: Any, uids: Sequence[int], waiting_samples: int, version: int, seconds: float
    ) -> None:
        """A step is trained: its `StepMetrics`, its groups' uids, the samples that wait for later steps, the
        oldest version that engines generate with, and the seconds that the trainer was at it."""
        ...

    def trained(self) -> None:
        """The last checkpoint and all events are written; the parts are about to be taken down."""
        ...
