"""A job in virtual time whose requests move while its engines die, leave and get new weights: the real
rollouter, pool, router and weight sync. Each token and each log-probability says what it is, so that whatever
is lost, doubled or altered on the way is seen."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np

from rljob_runtime.engines.fake import FakeEngine, FakeTiming
from rljob_runtime.engines.protocol import PauseMode, Request
from rljob_runtime.groups.responses import response_of
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.book import Book
from rljob_runtime.routing.fixed import Interleaved
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings
from rljob_runtime.routing.requests import Move
from rljob_runtime.samples import Generation, Group, Span, spans_cover
from tests.support.simulated.simulated_job import Scenario, SimulatedJob

MOST_MOVES = 6
"""How often a restless policy moves one response: a job whose responses move for ever has no end."""

MOST_FAULTS = 12
"""How many engines die, and how many leave: a response that loses its engine begins anew, and one that loses
every engine has no end either."""


def tokens_of(uid: int, sample: int, start: int, end: int) -> np.ndarray:
    """The tokens of a response at these positions, which no other response has, nor any other position."""
    positions = np.arange(start, end, dtype=np.int64)
    return ((uid * 64 + sample) * 4096 + positions).astype(np.int32)


def log_probs_of(tokens: np.ndarray, spans: tuple[Span, ...]) -> np.ndarray:
    """A log-probability for each token, by the token and by the version that it was sampled from."""
    versions = np.repeat([span.version for span in spans], [span.end - span.start for span in spans])
    return (-versions - tokens % 997 / 1000).astype(np.float32)


class MovingPolicy(Policy):
    """Moves requests at random: to an engine or to the queue, with their tokens or without."""

    def __init__(self, rng: random.Random, every: float) -> None:
        """`every`: seconds between two moves, on average, at least."""
        self._rng = rng
        self._every = every
        self._next = 0.0

    def moves(self, book: Book, now: float) -> Iterator[Move]:
        if now < self._next:
            return
        self._next = now + self._rng.expovariate(1 / self._every)
        engines = list(book.members())
        for engine in self._rng.sample(engines, min(2, len(engines))):
            movable = [key for key, request in engine.running.items() if request.moves < MOST_MOVES]
            for key in self._rng.sample(movable, min(2, len(movable))):
                target = self._rng.choice([None, *(other.number for other in engines)])
                yield Move(key, target, self._rng.random() < 0.3)


@dataclass
class Schedule:
    """A job and what happens to it, all of it by a seed; times in seconds."""

    seed: int
    policy: str
    scenario: Scenario
    kill_every: float
    drain_every: float
    abort_seconds: float
    """Longest time until an engine does what `abort` says."""
    report_seconds: float
    lengths: dict[tuple[int, int], int] = field(default_factory=dict)
    """Tokens of each response that has begun."""

    def length(self, uid: int, sample: int) -> int:
        return self.lengths.setdefault((uid, sample), self._length(uid, sample))

    def _length(self, uid: int, sample: int) -> int:
        rng = random.Random(f"{self.seed} {uid} {sample}")
        return rng.randrange(200, 600) if rng.random() < 0.15 else rng.randrange(1, 60)


POLICIES: dict[str, Callable[[random.Random, int], Policy]] = {
    "moving": lambda rng, groups: MovingPolicy(rng, rng.choice([0.01, 0.1, 0.5])),
    "probe": lambda rng, groups: ProbePolicy(ProbeSettings(groups, heavy_share=0.4)),
    "probe, moves": lambda rng, groups: ProbePolicy(
        ProbeSettings(rng.randint(2, 8), heavy_share=0.3, cap_factor=1.0, restart=False)
    ),
    "adaptive": lambda rng, groups: Adaptive(1000, plan_seconds=rng.choice([0.05, 0.5])),
    "interleaved": lambda rng, groups: Interleaved(groups),
}


def schedule(seed: int) -> Schedule:
    """A schedule at random."""
    rng = random.Random(seed)
    groups = rng.randint(1, 5)
    in_flight: PauseMode | None = rng.choice(["keep", "keep", "abort", "abort", "wait", None])
    policy = rng.choice(["moving", "moving", *POLICIES])
    scenario = Scenario(
        steps=rng.randint(1, 4),
        groups_per_step=groups,
        samples_per_prompt=rng.randint(1, 5),
        max_staleness=rng.choice([0, 0.5, 1, 2]),
        steps_per_version=rng.choice([1, 1, 2]),
        surplus=rng.choice([0, 0, 1]),
        in_flight=in_flight,
        engines=rng.randint(1, 3),
        heavy_engines=rng.randint(0, 2),
        policy=lambda: POLICIES[policy](rng, groups),
        max_running=rng.choice([1, 2, 4, 16]),
        timing=FakeTiming(
            step_seconds=0.01,
            sequence_seconds=rng.choice([0.0, 0.001]),
            prefill_seconds=rng.choice([0.0, 0.0005]),
            load_seconds=rng.choice([0.0, 0.02, 0.5]),
        ),
        train_seconds=rng.choice([0.0, 0.1, 1.0]),
        max_response_tokens=rng.choice([1000, 1000, 300]),
    )
    return Schedule(
        seed, policy, scenario,
        kill_every=rng.choice([0.3, 1.0, 5.0, 1e9]),
        drain_every=rng.choice([0.5, 2.0, 1e9]),
        abort_seconds=rng.choice([0.0, 0.01, 0.2]),
        report_seconds=rng.choice([0.05, 0.3]),
    )  # fmt: skip


class TellingEngine(FakeEngine):
    """Generates the tokens of `tokens_of`, and looks at what it is given."""

    job: "MigratingJob"

    async def submit(self, request: Request) -> Generation:
        job = self.job
        uid, sample = map(int, response_of(request.request_id).split("."))
        start = request.generated
        prompt = len(request.tokens) - start
        if start:
            job.seen["continued elsewhere or later"] += 1
        expected = [*job.prompt_tokens(uid), *tokens_of(uid, sample, 0, start)]
        job.expect(request.tokens.tolist() == expected, f"{request.request_id} goes on with other tokens")
        job.expect((uid, sample) not in job.running, f"{request.request_id} runs on two engines")
        job.expect(request.max_tokens == job.most_tokens - start, f"{request.request_id} may be too long")
        job.expect(prompt == 4, f"{request.request_id} has another prompt")
        job.running.add((uid, sample))
        try:
            generation = await super().submit(request)
        finally:
            job.running.discard((uid, sample))
        tokens = tokens_of(uid, sample, start, start + len(generation.tokens))
        return msgspec.structs.replace(
            generation, tokens=tokens, log_probs=log_probs_of(tokens, generation.spans)
        )

    async def abort(self, request_id: str) -> None:
        # Between the order and its effect the request may end, the engine pause, load or die.
        await asyncio.sleep(self.job.rng.uniform(0, self.job.schedule.abort_seconds))
        await super().abort(request_id)


class MigratingJob(SimulatedJob):
    """See the module. `wrong` is what was lost, doubled or altered, in words; `seen` counts what happened."""

    def __init__(self, schedule: Schedule) -> None:
        schedule.scenario.length_of = lambda request: schedule.length(
            *map(int, response_of(request.request_id).split("."))
        )
        schedule.scenario.faults = lambda job: asyncio.create_task(self._faults())
        super().__init__(schedule.scenario)
        self.schedule = schedule
        self.rng = random.Random(f"faults {schedule.seed}")
        self.running: set[tuple[int, int]] = set()
        self.wrong: list[str] = []
        self.seen: Counter[str] = Counter()

    @property
    def most_tokens(self) -> int:
        return self.scenario.max_response_tokens

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)

    def prompt_tokens(self, uid: int) -> list[int]:
        tokens: list[int] = self._prompt(uid).tokens.tolist()
        return tokens

    def run(self) -> "MigratingJob":
        try:
            super().run()
            self._check_end()
        except Exception as error:
            error.add_note(f"in schedule {self.schedule.seed}")
            raise
        return self

    def make_engine(self, name: str, pool: str = "fast") -> FakeEngine:
        scenario = self.scenario
        engine = TellingEngine(name, scenario.length_of, scenario.max_running, scenario.timing)
        engine.job = self
        return engine

    async def add_engine(self, version: int, pool: str = "fast") -> None:
        await super().add_engine(version, pool)
        slot = self.pool.slots[-1]
        slot.engine.on_progress(partial(self.pool.progressed, slot), self.schedule.report_seconds)

    def _engine_lost(self, slot: EngineSlot, why: str) -> None:
        # As the fleet does, which ends the process of a worker that is lost.
        slot.engine.die(why)  # type: ignore[attr-defined]
        super()._engine_lost(slot, why)

    # What happens

    async def _faults(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._often(self.schedule.kill_every, self._kill))
            tasks.create_task(self._often(self.schedule.drain_every, self._drain))

    async def _often(self, every: float, what: Callable[[], object]) -> None:
        for _ in range(MOST_FAULTS):
            await asyncio.sleep(self.rng.expovariate(1 / every))
            what()

    def _kill(self) -> None:
        """An engine dies: its requests find out, or the pool does first."""
        if self.pool.slots:
            slot = self.rng.choice(self.pool.slots)
            self.seen["engines that died"] += 1
            slot.engine.die("killed")  # type: ignore[attr-defined]
            if self.rng.random() < 0.5 or not slot.requests:
                self.pool.lost(slot, "killed")

    def _drain(self) -> None:
        slots = [slot for slot in self.pool.slots if not slot.leaving]
        if slots:
            self.seen["engines that left"] += 1
            self.tasks.create_task(self._leave(self.rng.choice(slots)))

    async def _leave(self, slot: EngineSlot) -> None:
        await self.pool.clear(slot, seconds=self.rng.choice([0.1, 5.0]))
        if slot.alive:
            await self.plan.remove(slot)
            self._engine_lost(slot, "it left")

    # What came of it

    def _check_end(self) -> None:
        bound, counts = self.controller.bound, self.rollouter.counts
        trained = sorted(group.uid for group in self.trained)
        total = self.scenario.steps * self.scenario.groups_per_step
        self.expect(trained == list(range(total)), f"groups trained: {trained}")
        self.expect(all(step.staleness_max <= bound.versions for step in self.steps), "older than the bound")
        ended = counts.accepted + sum(counts.cancelled.values())
        self.expect(counts.dispatched == ended and counts.accepted == total, f"{counts}")
        self.expect(counts.open == 0, f"{counts}")
        self.expect(not self.pool.router.book.groups and not self.running, "something is left")
        self.pool.router.book.check()
        for slot in self.pool.slots:
            self.expect(slot.running == 0 and not slot.requests, f"{slot.engine.name} has requests")
        for group in self.trained:
            self._check_group(group)
        self.seen["samples"] += sum(len(group.samples) for group in self.trained)
        self.seen["groups that were aborted"] += sum(counts.cancelled.values())
        self.seen["requests that lost their engine"] += counts.moved_requests
        self.seen["requests that went on"] += counts.continued_requests
        self.seen["requests that were moved"] += counts.rerouted_requests
        self.seen["requests that began anew"] += counts.restarted_requests
        self.seen["versions pushed or pulled"] += self.steps[-1].step // self.scenario.steps_per_version

    def _check_group(self, group: Group) -> None:
        self.expect(len(group.samples) == self.scenario.samples_per_prompt, f"group {group.uid}: samples")
        for index, sample in enumerate(group.samples):
            name, whole = f"sample {group.uid}.{index}", self.schedule.length(group.uid, index)
            length = min(whole, self.most_tokens)
            expected = tokens_of(group.uid, index, 0, length)
            versions = [span.version for span in sample.spans]
            self.expect(sample.tokens.tolist() == expected.tolist(), f"{name}: tokens")
            self.expect(spans_cover(sample.spans, length), f"{name}: spans")
            self.expect(versions == sorted(set(versions)), f"{name}: versions {versions}")
            self.expect(versions[0] >= group.dispatch_version, f"{name}: older than its group")
            log_probs = log_probs_of(sample.tokens, sample.spans)
            self.expect(sample.log_probs.tolist() == log_probs.tolist(), f"{name}: log-probabilities")
            self.expect(
                sample.finish == ("stop" if whole <= length else "length"), f"{name}: {sample.finish}"
            )
            self.seen["samples of several versions"] += len(versions) > 1
