"""A rollout worker as the fleet follows it, and the deadlines that it has. Nothing here does I/O."""

import asyncio
from dataclasses import dataclass, field

from rljob_runtime.fleet.scaling import Occupant
from rljob_runtime.fleet.worker_spec import WorkerSpec
from rljob_runtime.restarts import RestartBudget
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.site.nodes import RayNode


@dataclass(frozen=True)
class FleetTimes:
    """Deadlines, in seconds."""

    pods: float = 1800.0
    """For the first pod to come; spec.runPolicy.startDeadlineSeconds."""
    start: float = 1800.0
    """For a worker and its engine to be ready; spec.training.timeouts.startSeconds."""
    load: float = 900.0
    """For each load of weights before it joins; spec.training.timeouts.weightUpdateSeconds."""
    clear: float = 120.0
    """For a leaving engine to give its requests back; afterwards it counts as dead, and they begin again
    elsewhere from what earlier attempts had."""


@dataclass(eq=False)
class Member:
    """A worker, from the decision to start it until its slot is free again."""

    worker: WorkerSpec
    node: RayNode
    budget: RestartBudget
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has to go, or its node has gone."""
    died: "asyncio.Future[str] | None" = None
    """Gets the reason when its newest engine dies; None before the first one."""
    slot: EngineSlot | None = None
    """Its engine, while it is in the pool."""
    joined_at: float = 0.0
    """When its newest engine came into the pool, in seconds of the fleet's clock; 0 before the first."""
    moved: int = 0
    """Requests that its engine ran when it died."""
    generated: bool = False
    """Whether any of its engines has generated a token."""
    starting: bool = False
    """Its engine is started or loads weights, under a deadline."""
    loading: bool = False
    """What it does under the deadline is a load of weights."""

    @property
    def coming(self) -> bool:
        """Whether it is to serve and does not yet."""
        return not self.leave.is_set() and (self.slot is None or not self.slot.alive)

    @property
    def occupant(self) -> Occupant:
        """What it is at, in the words of `fleet.scaling`."""
        if self.leave.is_set():
            return "leaving"
        return "starting" if self.coming else "serving"

    def too_slow(self, times: FleetTimes) -> str:
        """Which of the deadlines `times` has passed, in words."""
        if self.loading:
            field = "spec.training.timeouts.weightUpdateSeconds"
            return f"it did not load its weights within {times.load:g} s ({field})"
        return f"it was not ready within {times.start:g} s (spec.training.timeouts.startSeconds)"
