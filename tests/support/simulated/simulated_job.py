"""A whole job in virtual time: the real loops, fake engines, a trainer that only takes time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.data.forced_lengths import ForcedLengths
from rljob_runtime.driver.evaluation_turn import Evaluating
from rljob_runtime.driver.stall import Activity
from rljob_runtime.driver.training_loop import LoopSettings, TrainingLoop
from rljob_runtime.engines.fake import FakeEngine, FakeTiming
from rljob_runtime.engines.protocol import PauseMode, Request, WeightRef
from rljob_runtime.groups.filter import GroupFilter
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.masking import context_tokens, oldest_trained
from rljob_runtime.groups.oversampling import OverSampling
from rljob_runtime.groups.refill import Refill
from rljob_runtime.groups.responses import Response
from rljob_runtime.groups.staleness import Bound, StalenessController
from rljob_runtime.groups.state import RolloutSettings
from rljob_runtime.rewards import Score
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.rollouter import Rollouter
from rljob_runtime.rollout.weight_sync import EngineSync, Pull, Push
from rljob_runtime.routing.policy import Policy
from rljob_runtime.samples import Group, Prompt
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.record.event_log import EventLog

_REPORT_SECONDS = 0.5
"""Between two reports of progress, which policies that look at lengths need."""


@dataclass(frozen=True)
class SimulatedStep:
    """What the time-taking trainer reports of a step."""

    step: int
    uids: tuple[int, ...]
    staleness_max: int
    """Age of the oldest first token, in versions."""
    trained_age_max: int
    """Age of the oldest token that is trained, in versions."""
    tokens: int
    """Tokens of its responses."""
    masked: int
    """Those of them that are too old to be trained."""
    ended: float


@dataclass
class Scenario:
    """A job and its cost model; times in seconds."""

    steps: int = 10
    total_groups: int | None = None
    groups_per_step: int = 8
    samples_per_prompt: int = 4
    max_staleness: float = 1.0
    steps_per_version: int = 1
    capacity_groups: int | None = None
    refill: int | None = None
    """Groups that are refused between two steps; None: none is."""
    filter: GroupFilter = field(default_factory=lambda: GroupFilter(equal_rewards=True))
    """Which ones; of effect with `refill` alone."""
    endless: bool = True
    """Whether other prompts take the place of refused ones, however many there are."""
    equal: Callable[[int], bool] = lambda uid: True
    """Whether the responses of a group all get the reward 1; otherwise they get 0, 1, 2, ..."""
    surplus: int = 0
    """Groups that are begun in each version beyond what the bound admits; 0: no over-sampling."""
    masks: bool = False
    """Whether stale tokens are masked, and not waited for."""
    in_flight: PauseMode | None = "keep"
    """How pushes interrupt; None is the pull plan."""
    engines: int = 2
    heavy_engines: int = 0
    """Further engines, of the heavy pool."""
    policy: Callable[[], Policy] = Policy
    """Where requests go."""
    max_running: int = 64
    timing: FakeTiming = field(default_factory=lambda: FakeTiming(step_seconds=0.01, load_seconds=0.02))
    heavy_timing: FakeTiming | None = None
    """Of engines of the heavy pool; None: as the others."""
    slowness: Sequence[float] = (1.0,)
    """How many times as long as `timing` each engine takes, in turn."""
    train_seconds: float = 0.5
    length_of: Callable[[Request], int] = lambda request: 10 + request.seed % 50
    max_response_tokens: int = 1_000_000
    reward_seconds: float = 0.0
    stall_seconds: float = 1e6
    """How long a step waits while nothing moves; by default longer than any job here takes."""
    forced: ForcedLengths | None = None
    controller: type[StalenessController] = StalenessController
    faults: Callable[["SimulatedJob"], "asyncio.Task[None] | None"] = lambda job: None
    evaluating: Callable[["SimulatedJob"], Evaluating | None] = lambda job: None
    """The job's evaluations; None: it has none."""

    def rewards(self, uid: int) -> list[float]:
        """Of the responses of a group."""
        return [1.0 if self.equal(uid) else float(index) for index in range(self.samples_per_prompt)]


class SimulatedJob:
    """Runs a scenario; afterwards holds what happened."""

    def __init__(
        self,
        scenario: Scenario,
        ledger: Ledger | None = None,
        first_step: int = 0,
        events_folder: Path | None = None,
    ) -> None:
        self.scenario = scenario
        self.events_folder = events_folder
        self.steps: list[SimulatedStep] = []
        self.groups: dict[int, Group] = {}
        self.trained: list[Group] = []
        self.saved: list[bytes] = []
        self.ledger = ledger or Ledger()
        self.first_step = first_step
        self.scored: Counter[int] = Counter()
        """How often the responses of each prompt were complete."""
        self.engines_made = 0
        self.turn = asyncio.Lock()
        self.starts = 1

    def run(self) -> "SimulatedJob":
        run_virtual(self._main())
        return self

    @property
    def samples_per_second(self) -> float:
        """Over all but the first tenth of the steps, which fill the pipeline."""
        # One step at least: the time is counted from its end.
        skipped = max(1, len(self.steps) // 10)
        first, last = self.steps[skipped - 1], self.steps[-1]
        groups = sum(len(step.uids) for step in self.steps[skipped:])
        return groups * self.scenario.samples_per_prompt / (last.ended - first.ended)

    async def _main(self) -> None:
        scenario, loop = self.scenario, asyncio.get_running_loop()
        self.events = EventLog(self.events_folder, 0, "driver", "driver", clock=loop.time)
        total = scenario.total_groups or scenario.steps * scenario.groups_per_step
        bound = Bound(
            scenario.max_staleness, scenario.groups_per_step, scenario.steps_per_version, scenario.masks
        )
        refill = None if scenario.refill is None else Refill(scenario.refill, scenario.endless)
        self.controller = scenario.controller(
            bound, total, len(self.ledger), scenario.capacity_groups, refill,
            OverSampling(scenario.surplus) if scenario.surplus else None,
        )  # fmt: skip
        uids = None if refill is not None and refill.endless else total
        self.pool = EnginePool(loop.time, self._engine_lost, scenario.policy())
        self.pool.step = self.first_step
        self.rollouter = Rollouter(
            RolloutSettings(
                scenario.samples_per_prompt, scenario.max_response_tokens, 0, scenario.forced,
                filter=scenario.filter if refill is not None else GroupFilter(),
            ),
            self.pool, self.controller, self._prompt, self.ledger, self.ledger.remaining(uids),
            self._score, self._put, self.events,
        )  # fmt: skip
        async with asyncio.TaskGroup() as tasks:
            self.tasks = tasks
            sync = EngineSync(self.pool, deadline=60, stall_seconds=scenario.stall_seconds)
            self.plan = (
                Push(sync, scenario.in_flight) if scenario.in_flight else Pull(sync, tasks.create_task)
            )
            for _ in range(scenario.engines):
                await self.add_engine(bound.version_at(self.first_step))
            for _ in range(scenario.heavy_engines):
                await self.add_engine(bound.version_at(self.first_step), "heavy")
            rolling = tasks.create_task(self.rollouter.run())
            self.loop = TrainingLoop(
                LoopSettings(
                    checkpoint_every=3,
                    data=DataFingerprint("made up", total, "", "", "in order"),
                    stall_seconds=scenario.stall_seconds,
                ),
                self, self.rollouter, self.controller, self.plan, self.ledger, self,
                self.events, tasks.create_task, self._activity,
                lambda step, uids, seconds: self.steps.append(step),
                evaluating=scenario.evaluating(self),
            )  # fmt: skip
            faults = scenario.faults(self)
            await self.loop.run(self.first_step)
            rolling.cancel()
            self.events.flush()
            if faults is not None:
                faults.cancel()
        for slot in self.pool.slots:
            await slot.engine.close()

    async def _activity(self) -> Activity:
        raise AssertionError("nobody asks before a step has waited for days")

    def timing_of(self, pool: str) -> FakeTiming:
        heavy = self.scenario.heavy_timing if pool == "heavy" else None
        return heavy or self.scenario.timing

    def make_engine(self, name: str, pool: str = "fast") -> FakeEngine:
        scenario, timing = self.scenario, self.timing_of(pool)
        slowness = scenario.slowness[(self.engines_made - 1) % len(scenario.slowness)]
        return FakeEngine(name, scenario.length_of, scenario.max_running, timing.times(slowness))

    async def add_engine(self, version: int, pool: str = "fast") -> None:
        self.engines_made += 1
        engine = self.make_engine(f"engine-{self.engines_made}", pool)
        await engine.start(version)
        slot = EngineSlot(engine, pool, self.scenario.max_running, self.events, version)
        if self.scenario.policy is not Policy:
            engine.on_progress(partial(self.pool.progressed, slot), _REPORT_SECONDS)
        self.pool.add(slot)
        self.pool.join(slot)

    def _engine_lost(self, slot: EngineSlot, why: str) -> None:
        async def replace() -> None:
            await asyncio.sleep(1.0)
            newest = self.plan.newest
            version = newest.version if newest else self.controller.bound.version_at(self.first_step)
            await self.add_engine(version, slot.pool)

        self.tasks.create_task(replace())

    def _prompt(self, uid: int) -> Prompt:
        return Prompt(uid=uid, epoch=0, row=uid, tokens=np.full(4, uid % 30000, np.int32))

    async def _score(self, prompt: Prompt, responses: Sequence[Response]) -> list[Score]:
        self.scored[prompt.uid] += 1
        await asyncio.sleep(self.scenario.reward_seconds)
        return [Score(reward) for reward in self.scenario.rewards(prompt.uid)]

    async def _put(self, group: Group) -> None:
        assert group.uid not in self.groups, f"group {group.uid} was put twice"
        self.groups[group.uid] = group

    # Trainer and WaitingGroups

    async def step(self, step: int, version: int, uids: Sequence[int]) -> SimulatedStep:
        groups = [self.groups.pop(uid) for uid in uids]
        samples = [sample for group in groups for sample in group.samples if sample.spans]
        stale = max((version - sample.spans[0].version for sample in samples), default=0)
        oldest = oldest_trained(self.controller.bound, version)
        contexts = [context_tokens(sample.spans, oldest) for sample in samples]
        trained = [
            span.version
            for sample, context in zip(samples, contexts, strict=True)
            for span in sample.spans
            if span.end > context
        ]
        self.trained += groups
        await asyncio.sleep(self.scenario.train_seconds)
        return SimulatedStep(
            step,
            tuple(uids),
            stale,
            version - min(trained, default=version),
            sum(len(sample.tokens) for sample in samples),
            sum(contexts),
            asyncio.get_running_loop().time(),
        )

    stores = True

    async def publish(self, version: int) -> None:
        pass

    async def ref(self, version: int) -> WeightRef:
        return WeightRef(version, "shm", f"v{version}")

    async def transmit(self, ref: WeightRef) -> bool:
        raise AssertionError("shm needs no transmit")

    async def break_off(self, ref: WeightRef, why: str) -> None:
        raise AssertionError("shm needs no transmit")

    async def save(self, step: int, state: bytes) -> None:
        self.saved.append(state)

    def frames(self) -> list[bytes]:
        return []

    def taken(self, step: int, uids: Sequence[int]) -> None:
        pass

    def forget(self, uids: Sequence[int]) -> None:
        """`step` took them out already."""
