"""A whole job in virtual time that loses its trainer: the real session, loops and queue rules, fake engines,
and a trainer that takes time and dies when it is told to."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from rljob_api import RLJob
from rljob_api.algorithm import Algorithm
from rljob_api.data import Curriculum as CurriculumSettings
from rljob_api.data import PoolShares
from rljob_runtime.change_signal import ChangeSignal
from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.data.length_trace import TraceHeader
from rljob_runtime.data.tokenizer import CharacterTokenizer
from rljob_runtime.driver.activity import JobActivity
from rljob_runtime.driver.evaluations import Evaluations
from rljob_runtime.driver.job_settings import job_settings
from rljob_runtime.driver.measuring_scorer import MeasuringScorer
from rljob_runtime.driver.parts import Parts
from rljob_runtime.driver.recording_scorer import RecordingScorer
from rljob_runtime.driver.reward_failures import RewardFailures
from rljob_runtime.driver.sample_keeper import SampleKeeper
from rljob_runtime.driver.session import Session
from rljob_runtime.driver.stop import StopRequest
from rljob_runtime.driver.watched_scorer import WatchedScorer
from rljob_runtime.driver.weight_delivery import WeightDelivery
from rljob_runtime.engines.protocol import Sampling
from rljob_runtime.evaluation.engines import PoolShare
from rljob_runtime.evaluation.schedule import EvaluationSchedule
from rljob_runtime.fleet.fleet import Fleet
from rljob_runtime.fleet.member import FleetTimes, Member
from rljob_runtime.groups.curriculum import Curriculum
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.responses import Response
from rljob_runtime.net.keys import Keyring
from rljob_runtime.objective.advantages import estimator
from rljob_runtime.restarts import RestartBudget
from rljob_runtime.rewards import Score
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.evaluation_engines import EvaluationEngines
from rljob_runtime.rollout.evaluator import Evaluator, EvaluatorSettings, HeldOutSet
from rljob_runtime.rollout.outbox import Outbox
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.rollouter import Rollouter, Scorer
from rljob_runtime.rollout.weight_sync import EngineSync, Pull, Push
from rljob_runtime.routing.policy import Policy
from rljob_runtime.samples import Prompt
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.site.desired import DesiredState
from rljob_runtime.site.nodes import NodeTable, RayNode
from rljob_runtime.site.site import Site
from rljob_runtime.site.status_draft import StatusDraft
from rljob_runtime.trace.record.evaluation_log import EvaluationLine, EvaluationLog
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.trace.record.length_log import LengthLog
from rljob_runtime.trace.record.sample_log import SampleLog
from rljob_runtime.trace.record.start_log import Cause
from rljob_runtime.weights.transport import STORED
from tests.support.simulated.losable_parts import EVALUATED, LocalQueue, LosableTrainer, Losses, WatchedEngine

SAMPLES = 3
"""Responses of each step that are kept as text."""


class LosingSession:
    """The real session on parts that are made up; also what the scripts of the tests do to it."""

    def __init__(self, losses: Losses, tasks: asyncio.TaskGroup) -> None:
        manifest = losses.manifest()
        data = DataFingerprint("made up", 1, "", "", "in order")
        loop, self.settings = asyncio.get_running_loop(), job_settings(manifest, 40)
        self.lost: list[str] = []
        """Why engines were lost."""
        self.said: list[str] = []
        self.placed_at: list[tuple[int, int]] = []
        """Each dispatched group and its place in the order, by a curriculum."""
        self.rewarded = 0
        self.evaluated: list[EvaluationLine] = []
        """Evaluations in the order in which they were told."""
        self.began_at: list[int] = []
        self.rows: list[int] = []
        """Steps that have a row, as the observer keeps them."""
        self.interruptions: list[Cause] = []
        self.trains = False
        """Whether training has begun and is not interrupted."""
        self.events = EventLog(None, 0, "driver", "driver", clock=loop.time)
        self.pool = EnginePool(loop.time, self._engine_lost, losses.policy())
        queue = LocalQueue(self.settings.capacity_samples)
        self.losable = LosableTrainer(losses, queue)
        self.placed = Placed()
        self._losses = losses
        self._spawn = tasks.create_task
        self.parts = self._parts(manifest, queue)
        checkpoints = Path("/nowhere")
        self.session = Session(manifest, self.settings, data, checkpoints, self.parts, cast(Any, self))

    def _parts(self, manifest: RLJob, queue: LocalQueue) -> Parts:
        losses, changes, settings = self._losses, ChangeSignal(), self.settings
        desired = DesiredState.of(manifest)
        table = NodeTable(_no_nodes, _no_pod, (), changes)
        site = Site(
            True, table, "home", "127.0.0.1", lambda: desired, StatusDraft(attempt=1), changes, Keyring()
        )
        outbox = Outbox(cast(Any, queue), self.events, 1e9)
        failures = RewardFailures("rewards:score", Path("/nowhere/rewards.log"))
        rollout = settings.rollout
        header = TraceHeader(rollout.samples_per_prompt, rollout.max_response_tokens)
        lengths = LengthLog(losses.folder, header)
        curriculum = self._curriculum()
        scorer: Scorer = RecordingScorer(WatchedScorer(self._score, failures), lengths)
        if curriculum is not None:
            scorer = MeasuringScorer(scorer, curriculum)
        rollouter = Rollouter(
            rollout, self.pool, settings.controller(Ledger()), self._prompts(curriculum), Ledger(), iter(()),
            scorer, outbox, self.events,
        )  # fmt: skip
        engines = EngineSync(self.pool, deadline=60, stall_seconds=losses.stall_seconds)
        sync = Push(engines, losses.in_flight) if losses.in_flight else Pull(engines, self._spawn)
        delivery = WeightDelivery(self.losable, sync, self.pool, settings.bound)
        made_up: Any = SimpleNamespace()
        fleet = FleetByHand(
            made_up, self.pool, sync, delivery.send_again, delivery.may_join, site, self._spawn,
            lambda _: None, FleetTimes(), asyncio.get_running_loop().time,
        )  # fmt: skip
        self._fleet = fleet
        activity = JobActivity(self.pool, fleet, rollouter, lambda: self.rewarded)
        folder, clock = losses.folder, asyncio.get_running_loop().time
        says = SampleKeeper(
            SAMPLES if folder else 0, SampleLog(folder or Path("/nowhere")), outbox,
            CharacterTokenizer("abcdefgh"), settings.bound, estimator(Algorithm()), 0, self._spawn,
            clock,
        )  # fmt: skip
        return Parts(
            site, StopRequest(changes), self.events, lengths, self.pool, queue, outbox, rollouter, failures,
            self.losable,
            self.placed, self._start_trainer, says, sync, delivery, fleet, activity, self._spawn,
            self.said.append, self._evaluations(rollouter, delivery, sync), curriculum,
        )  # fmt: skip

    def _curriculum(self) -> Curriculum | None:
        rows = self._losses.curriculum_rows
        if rows is None:
            return None
        settings = CurriculumSettings(shares=PoolShares(solved=0.0))
        return Curriculum(settings, 1.0, 0, rows, lambda place: place % rows)

    def _prompts(self, curriculum: Curriculum | None) -> Callable[[int], Prompt]:
        if curriculum is None:
            return _prompt

        def prompt(uid: int) -> Prompt:
            place = curriculum.place(uid)
            self.placed_at.append((uid, place))
            return Prompt(uid, 0, place % (self._losses.curriculum_rows or 1), np.full(4, 7, np.int32))

        return prompt

    def _evaluations(
        self, rollouter: Rollouter, delivery: WeightDelivery, sync: Push | Pull
    ) -> Evaluations | None:
        losses, clock = self._losses, asyncio.get_running_loop().time
        if losses.evaluate_every is None:
            return None
        assert losses.folder is not None

        def pin(step: int | None) -> None:
            delivery.pinned = step

        settings = EvaluatorSettings(2, losses.max_response_tokens, 0, Sampling(), kept=3)
        held_out = HeldOutSet("held_out", EVALUATED, lambda row: _prompt(row))
        self.evaluator = Evaluator(
            [held_out], settings, self.pool, rollouter.responder, self._grade, rollouter.poke
        )
        wanted = None if losses.set_aside is None else PoolShare("fast", losses.set_aside)
        engines = EvaluationEngines(
            self.pool, sync, wanted, self._spawn, self.said.append, delivery.send_again
        )
        evaluations = Evaluations(
            EvaluationSchedule(losses.evaluate_every, losses.steps_per_version), self.evaluator, 1.0,
            EvaluationLog(losses.folder), CharacterTokenizer("abcdefgh"), clock, pin,
            engines,
        )  # fmt: skip
        evaluations.on_evaluated = self.evaluated.append
        return evaluations

    async def _grade(self, prompt: Prompt, responses: Sequence[Response]) -> list[Score]:
        """The first of the two responses to each prompt passes."""
        self.rewarded += len(responses)
        return [Score(float(index == 0)) for index in range(len(responses))]

    @property
    def rollouter(self) -> Rollouter:
        return self.parts.rollouter

    async def train(self) -> None:
        """From the beginning to the end."""
        for _ in range(self._losses.engines):
            self.pool.join(await self.come())
        for _ in range(self._losses.heavy_engines):
            self.pool.join(await self.come("heavy"))
        script = None if self._losses.script is None else self._spawn(self._losses.script(self))
        await self.session.run(resume=False)
        # A script that is cut off would have tested less than it says.
        assert script is None or script.done(), "the script was not at its end when the job was"

    async def come(self, pool: str = "fast") -> EngineSlot:
        """A new engine, with the weights that training began with; it has yet to join."""
        slot = await self._made(pool)
        self._add(slot)
        return slot

    async def come_as_newcomer(self) -> EngineSlot:
        """A new engine, which the fleet has join."""
        slot, made_up = await self._made("fast"), cast(Any, None)
        await self._fleet._enter(Member(made_up, made_up, RestartBudget("it")), slot)
        return slot

    async def come_with_newest(self) -> None:
        """A new engine joins with the newest version, which is stored: as the fleet does it."""
        slot, loaded = await self._made("fast"), None
        await self.parts.delivery.may_join.wait()
        while (ref := self.parts.sync.newest) != loaded and ref is not None:
            await slot.engine.pause("abort")
            await slot.engine.load(ref)
            await slot.engine.resume()
            slot.version, loaded = ref.version, ref
        self._add(slot)
        self.pool.join(slot)

    async def _made(self, pool: str) -> EngineSlot:
        engine = WatchedEngine(f"engine-{len(self.pool.slots)}", self._losses, self.losable)
        await engine.start(0)
        engine.slot = EngineSlot(engine, pool, self._losses.max_running, self.events)
        return engine.slot

    def _add(self, slot: EngineSlot) -> None:
        self.pool.add(slot)
        if self._losses.policy is not Policy:
            slot.engine.on_progress(partial(self.pool.progressed, slot), 0.1)

    async def _score(self, prompt: Prompt, responses: Sequence[Response]) -> list[Score]:
        await asyncio.sleep(self._losses.reward_seconds)
        self.rewarded += len(responses)
        failure = self._losses.failure(prompt.uid)
        if failure is not None:
            return [Score(0.0, failure) for _ in responses]
        equal = self._losses.equal(prompt.uid)
        return [Score(1.0 if equal else float(index)) for index in range(len(responses))]

    def refused(self, ledger: Ledger) -> set[int]:
        """The prompts that are done and were not trained."""
        trained = {group.uid for groups in self.losable.trained for group in groups}
        return {uid for uid in range(ledger.end) if uid in ledger} - trained

    def resize_trainer(self, workers: int) -> None:
        """The RLJob asks for another number of trainer workers."""
        self.placed.asked = workers
        self.parts.site.changes.notify()

    async def _start_trainer(self) -> None:
        self.placed.workers = self.placed.asked
        await self.losable.start()

    async def send_to_newcomers(self) -> None:
        """What the fleet does when engines have come that take part in broadcasts."""
        await self.parts.delivery.send_again()

    def _engine_lost(self, slot: EngineSlot, why: str) -> None:
        self.lost.append(why)
        self._fleet.lost(slot, why)

    # The session's observer

    def begins(self, parts: Parts, first_step: int) -> None:
        self.began_at.append(first_step)

    def training(self, step: int) -> None:
        self.rows = [row for row in self.rows if row < step]
        self.trains = True

    def interrupted(self, cause: Cause, why: str = "") -> None:
        self.interruptions.append(cause)
        self.trains = False

    def step_begins(self, uids: Sequence[int]) -> None:
        assert self.trains, "a step begins while training is interrupted"

    def step_done(self, metrics: Any, *_: object) -> None:
        assert self.trains, "a step between an interruption and the next beginning"
        self.rows.append(metrics.step)

    def trained(self) -> None:
        pass


class FleetByHand(Fleet):
    """The fleet of engines that the test starts itself (`LosingSession.come`)."""

    async def started(self, stopping: Callable[[], bool]) -> None:
        pass


class Placed:
    """The trainer's pods, which are there."""

    def __init__(self) -> None:
        self.workers = self.asked = 1

    @property
    def outdated(self) -> bool:
        return self.asked != self.workers

    async def drop_lost(self) -> None:
        pass


def run_losing(losses: Losses) -> LosingSession:
    """Run a job to its end; its session afterwards."""

    async def main() -> LosingSession:
        assert losses.in_flight or not losses.collective, f"pull needs one of {STORED}"
        async with asyncio.TaskGroup() as tasks:
            session = LosingSession(losses, tasks)
            await session.train()
        return session

    return run_virtual(main())


async def _no_nodes() -> list[RayNode]:
    return []


async def _no_pod(node_id: str) -> str:
    return ""


def _prompt(uid: int) -> Prompt:
    return Prompt(uid=uid, epoch=0, row=uid, tokens=np.full(4, 7, np.int32))
