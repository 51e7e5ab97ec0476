"""The parts of a job that loses its trainer, in virtual time: what it may lose, a trainer that takes time and
dies when it is told to, engines that are watched, and the queue's rules without its sockets."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rljob_api import RLJob
from rljob_runtime.change_signal import ChangeSignal
from rljob_runtime.driver.rank_calls import TrainerDied
from rljob_runtime.engines.fake import FakeEngine, FakeTiming
from rljob_runtime.engines.protocol import LoadSnapshot, PauseMode, Request, WeightRef
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.state import JobState
from rljob_runtime.queue.broker import Broker, Granted, Stored
from rljob_runtime.queue.wire import QueuedGroup
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.routing.policy import Policy
from rljob_runtime.samples import Group, decode_group
from rljob_runtime.weights.collective import Rendezvous
from tests.support.jobs import job

if TYPE_CHECKING:
    from tests.support.simulated.losing_job import LosingSession

EVALUATED = 6
"""Prompts of an evaluation, of two responses each."""
CALLS = ("step", "publish", "write", "transmit", "save", "start", "load")
"""What the trainer may die at."""


def heavy_tail(request: Request) -> int:
    """One response in eight is 40 times as long as the shortest."""
    return 400 if request.seed % 8 == 0 else 10 + request.seed % 20


@dataclass
class Losses:
    """A job, and at which of the trainer's calls it is lost; times in seconds."""

    at: Sequence[tuple[str, int]] = ()
    """Method, and which call of it, from 1."""
    steps: int = 12
    epochs: int | None = None
    """Of 40 prompts, instead of `steps`."""
    groups_per_step: int = 4
    max_staleness: float = 2.0
    steps_per_version: int = 1
    checkpoint_every: int = 3
    in_flight: PauseMode | None = "keep"
    """How pushes interrupt; None is the pull plan."""
    collective: bool = False
    fetch_seconds: float = 0.0
    """How long engines fetch a version while they generate on; 0: it is on their machine."""
    engines: int = 2
    heavy_engines: int = 0
    """Further engines, of the heavy pool."""
    policy: Callable[[], Policy] = Policy
    """Where requests go."""
    max_running: int = 3
    seconds: dict[str, float] = field(default_factory=lambda: {"step": 0.5, "publish": 0.5, "start": 5.0})
    """How long the trainer's calls take."""
    length: Callable[[Request], int] = heavy_tail
    """Tokens of a response."""
    max_response_tokens: int = 1000
    timing: FakeTiming = field(default_factory=lambda: FakeTiming(step_seconds=0.01, load_seconds=0.02))
    stall_seconds: int = 1800
    reward_seconds: float = 0.0
    failure: Callable[[int], str | None] = lambda uid: None
    """Why the responses of a group get no reward; None where they do."""
    folder: Path | None = None
    """Where lengths of responses are recorded, and what the model says."""
    max_refill: int | None = None
    """Of `rollout.filter`; None: there is none."""
    refuse: Literal["zeroVariance", "passRate"] = "zeroVariance"
    """Which groups that filter refuses: those of equal rewards, or those that every response passed. They are
    the same ones here."""
    over_sampling: float | None = None
    """Of `rollout.overSampling`, its rate; None: there is none."""
    equal: Callable[[int], bool] = lambda uid: True
    """Whether the responses of a group get equal rewards."""
    curriculum_rows: int | None = None
    """The data have so many prompts, and are trained by difficulty, without those that are solved; None: no
    prompt comes again."""
    evaluate_every: int | None = None
    """Weight versions between two evaluations of `EVALUATED` prompts; None: none is evaluated. Needs a
    `folder`."""
    set_aside: int | None = None
    """Engines of the fast pool that are set aside for evaluations; None: these run on all."""
    script: "Callable[[LosingSession], Coroutine[Any, Any, None]] | None" = None
    """What else happens; ends before the job does."""

    def manifest(self) -> RLJob:
        bound = {"maxRefill": self.max_refill}
        refused = bound if self.refuse == "zeroVariance" else {"max": 0.9, **bound}
        length = {"totalSteps": self.steps} if self.epochs is None else {"epochs": self.epochs}
        changes: dict[str, Any] = {
            "training.schedule": {**length, "promptsPerBatch": self.groups_per_step},
            "training.rollout": {
                "samplesPerPrompt": 2,
                "maxResponseTokens": self.max_response_tokens,
                **({} if self.over_sampling is None else {"overSampling": {"rate": self.over_sampling}}),
                "filter": {} if self.max_refill is None else {self.refuse: refused},
            },
            "training.async": {"maxStaleness": self.max_staleness, "stepsPerVersion": self.steps_per_version},
            "training.checkpoint": {"everySteps": self.checkpoint_every},
            "training.model": {"random": {"maxPositionEmbeddings": 2 * self.max_response_tokens + 1024}},
            "training.parallel": {"maxTokensPerMicroBatch": 2 * self.max_response_tokens + 16384},
            "training.timeouts": {"stallSeconds": self.stall_seconds},
        }
        return RLJob.model_validate(job(changes))


class LocalQueue:
    """The queue's rules without its sockets, as `QueueService` and as its client."""

    def __init__(self, capacity_samples: int) -> None:
        # Leases outlast the job: in virtual time none is to end by itself.
        self.broker = Broker(capacity_samples, lease_seconds=1e9)
        self._numbers = 0

    def ticket(self, client: str) -> tuple[str, int]:
        self._numbers += 1
        self.broker.touch(client, 0.0)
        return client, self._numbers

    async def put(self, groups: Sequence[tuple[int, int, bytes]], timeout: float) -> list[bool]:
        outcomes = self.broker.put(self.ticket("driver"), [QueuedGroup(*group) for group in groups])
        assert outcomes, "an outstanding group has its place in the queue"
        assert isinstance(outcomes[0], Stored)
        return list(outcomes[0].accepted)

    async def reset(self, ledger: Ledger) -> None:
        self.broker.reset(self.broker.term + 1, ledger.watermark, ledger.ahead)


class LosableTrainer:
    """Notes what it trains, and which published weights were given up."""

    def __init__(self, losses: Losses, queue: LocalQueue) -> None:
        self.turn = asyncio.Lock()
        self.starts = 0
        self.steps = 0
        self.stepped = ChangeSignal()
        self.trained: list[list[Group]] = []
        """By step, as far as it counts."""
        self.ages: list[int] = []
        """Ages of first and last tokens when trained, also in steps that do not count in the end."""
        self.abandoned: set[str] = set()
        """Locations of weights that were published after the checkpoint that the job went back to."""
        self.losses = 0
        self._losses = losses
        self._queue = queue
        self._calls: Counter[str] = Counter()
        self._published: list[WeightRef] = []
        self._offered: set[str] = set()
        """Where the processes of this start could be met."""
        self._saved: tuple[int, bytes] | None = None

    async def _work(self, call: str) -> None:
        self._calls[call] += 1
        seconds = self._losses.seconds.get(call, 0.1)
        # It dies in the middle of the call, as a process that is killed.
        await asyncio.sleep(seconds / 2)
        if (call, self._calls[call]) in self._losses.at:
            self.losses += 1
            raise TrainerDied(f"it was killed at {call}")
        await asyncio.sleep(seconds / 2)

    async def start(self) -> None:
        self.steps = 0
        self.starts += 1
        self._offered.clear()
        await self._work("start")

    async def step(self, step: int, version: int, uids: Sequence[int]) -> SimpleNamespace:
        broker = self._queue.broker
        (outcome,) = broker.get(self._queue.ticket("trainer"), uids)
        assert isinstance(outcome, Granted), outcome
        # Remembered: an acknowledgement of an earlier term must not take out groups of a later one.
        term, groups = broker.term, [decode_group(group.frame) for group in outcome.groups]
        async with self.turn:
            await self._work("step")
            self.steps = step + 1
            self.stepped.notify()
        for spans in [sample.spans for group in groups for sample in group.samples]:
            self.ages += [version - spans[0].version, version - spans[-1].version]
        broker.ack(uids, term)
        assert len(self.trained) == step
        self.trained.append(groups)
        return SimpleNamespace(step=step)

    @property
    def stores(self) -> bool:
        return not self._losses.collective

    async def publish(self, version: int) -> None:
        await self._work("publish")

    async def ref(self, version: int) -> WeightRef:
        await self._work("write")
        location = f"host:{len(self._published)}"
        stored: Literal["tcp", "shm"] = "tcp" if self._losses.fetch_seconds else "shm"
        ref = WeightRef(version, "nccl" if self._losses.collective else stored, location)
        self._published.append(ref)
        self._offered.add(location)
        return ref

    async def transmit(self, ref: WeightRef) -> bool:
        where = Rendezvous.parse(ref.location).address
        assert where in self._offered, "engines are where no process of this trainer was"
        await self._work("transmit")
        return True

    async def break_off(self, ref: WeightRef, why: str) -> None:
        raise AssertionError("no engine is lost while weights are sent")

    async def save(self, step: int, state: bytes) -> None:
        async with self.turn:
            await self._work("save")
        self._saved = step, state

    async def stop(self) -> None:
        pass

    async def load(self) -> JobState | None:
        await self._work("load")
        self.steps = 0 if self._saved is None else self._saved[0]
        # What was trained after the checkpoint does not count; weights of later versions are given up.
        del self.trained[self.steps :]
        kept = self.steps // self._losses.steps_per_version
        self.abandoned |= {ref.location for ref in self._published if ref.version > kept}
        return None if self._saved is None else msgspec.msgpack.decode(self._saved[1], type=JobState)


class WatchedEngine(FakeEngine):
    """Generates with weights that count, or the test fails."""

    def __init__(self, name: str, losses: Losses, trainer: LosableTrainer) -> None:
        super().__init__(name, losses.length, losses.max_running, losses.timing)
        self._trainer = trainer
        self._fetch_seconds = losses.fetch_seconds
        self._location = ""
        self._bringing = asyncio.Lock()
        self.slot: EngineSlot | None = None
        self.stuck = False
        """It does not finish what it runs, and says that it generates nothing."""

    async def pause(self, mode: PauseMode) -> None:
        if self.stuck:
            await asyncio.get_running_loop().create_future()
        await super().pause(mode)

    async def load_snapshot(self) -> LoadSnapshot:
        snapshot = await super().load_snapshot()
        return msgspec.structs.replace(snapshot, generated_tokens=7) if self.stuck else snapshot

    async def prepare(self, ref: WeightRef) -> None:
        assert not self._bringing.locked(), "two versions are brought to it at a time"
        async with self._bringing:
            await asyncio.sleep(self._fetch_seconds)

    async def load(self, ref: WeightRef) -> None:
        assert not self._bringing.locked(), "two versions are brought to it at a time"
        async with self._bringing:
            await super().load(ref)
        self._location = ref.location

    async def submit(self, request: Request) -> Any:
        assert self._location not in self._trainer.abandoned, "weights that were given up"
        trained = not request.request_id.startswith("-")
        assert self.slot is not None and not (trained and self.slot.aside), "it is set aside"
        return await super().submit(request)
