"""Makes the parts of a job, and takes them down: the one place that knows how they are connected.

Guarantees: nothing heavy starts before data, tokenizer and model are there; whatever happens, each part that
was made is ended, in the reverse order. Rollout workers, which take the longest, begin to start as soon as
they can; ranks are started later, by the parts themselves.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rljob_api import RLJob
from rljob_runtime.data.length_trace import TraceHeader
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.devices import Devices
from rljob_runtime.driver.activity import JobActivity
from rljob_runtime.driver.evaluations import Evaluations
from rljob_runtime.driver.export import keep_model_files
from rljob_runtime.driver.job_settings import JobSettings
from rljob_runtime.driver.measuring_scorer import MeasuringScorer
from rljob_runtime.driver.model_folder import checkpoint_root, engine_model
from rljob_runtime.driver.parts import Parts, Spawn
from rljob_runtime.driver.placement import RankPlacement
from rljob_runtime.driver.ranks import RayTrainer
from rljob_runtime.driver.recording_scorer import RecordingScorer
from rljob_runtime.driver.reward_failures import RewardFailures
from rljob_runtime.driver.sample_keeper import SampleKeeper
from rljob_runtime.driver.stop import StopRequest
from rljob_runtime.driver.trainer_start import TrainerStart
from rljob_runtime.driver.watched_scorer import WatchedScorer
from rljob_runtime.driver.weight_delivery import WeightDelivery
from rljob_runtime.engines.sampling import evaluation_sampling
from rljob_runtime.evaluation.engines import PoolShare
from rljob_runtime.evaluation.schedule import EvaluationSchedule
from rljob_runtime.fleet.fleet import Fleet
from rljob_runtime.fleet.member import FleetTimes
from rljob_runtime.fleet.shared_devices import shared_devices
from rljob_runtime.fleet.workers import RolloutWorkers
from rljob_runtime.groups.curriculum import Curriculum
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.objective.advantages import estimator
from rljob_runtime.queue.service import QueueService
from rljob_runtime.rewards.calls import calls_of, in_words
from rljob_runtime.rewards.pool import RewardPool
from rljob_runtime.rollout.evaluation_engines import EvaluationEngines
from rljob_runtime.rollout.evaluator import Evaluator, EvaluatorSettings, HeldOutSet
from rljob_runtime.rollout.outbox import Outbox
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.rollouter import Rollouter, Scorer
from rljob_runtime.rollout.scorer import PoolScorer
from rljob_runtime.rollout.served_teacher import ServedTeacher
from rljob_runtime.rollout.taught_scorer import TaughtScorer
from rljob_runtime.rollout.weight_sync import EngineSync, Pull, Push
from rljob_runtime.routing.choose import policy_of
from rljob_runtime.run_folder import RunOptions
from rljob_runtime.samples import Prompt
from rljob_runtime.site import one_machine as local_ray
from rljob_runtime.site.actor_devices import visible_ids
from rljob_runtime.site.own_start import OwnStart, StartPart
from rljob_runtime.site.process_use import ProcessUse, UseSampler
from rljob_runtime.site.site import Site
from rljob_runtime.trace.analyse.worker_starts import WorkerStart
from rljob_runtime.trace.record.evaluation_log import EvaluationLog
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER, EventLog
from rljob_runtime.trace.record.event_ranks import EventRanks
from rljob_runtime.trace.record.length_log import LengthLog
from rljob_runtime.trace.record.sample_log import SampleLog
from rljob_runtime.weights.route import WeightRoute, open_route

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobInputs:
    """What a job's parts are made from."""

    job: RLJob
    options: RunOptions
    settings: JobSettings
    tokenizer: TextTokenizer
    prompts: PromptSource
    held_out: tuple[HeldOutSet, ...] = ()
    """What is evaluated."""
    teacher: ServedTeacher | None = None
    """The teacher that a server has, opened; None without one."""
    start: OwnStart = field(default_factory=OwnStart)
    """The driver's own start."""

    @property
    def checkpoints(self) -> Path:
        """The folder that checkpoints go to."""
        return checkpoint_root(self.job, self.options.folder, self.options.manifest_folder)

    @property
    def rewards_log(self) -> Path:
        """What the reward function prints, and its tracebacks."""
        return self.options.folder / "rewards.log"

    @property
    def events_folder(self) -> Path | None:
        """Where events are written; None where the job records none."""
        return self.options.folder / EVENTS_FOLDER if self.job.spec.training.profiling.events else None


@asynccontextmanager
async def assembled(
    inputs: JobInputs, site: Site, stop: StopRequest, say: Callable[[str], None]
) -> AsyncIterator[Parts]:
    """The parts of a job at `site`; they are ended when the context is left. `say` tells a person, in one
    line."""
    job, options, settings = inputs.job, inputs.options, inputs.settings
    timeouts = job.spec.training.timeouts
    event_ranks = EventRanks()
    devices = visible_ids(Devices.of(job.spec.accelerator), local_ray.devices())
    shared = shared_devices(job, devices, options.share)
    events = EventLog(inputs.events_folder, 0, "driver", "driver")
    async with AsyncExitStack() as stack:
        # Entered first and left last: it waits for the tasks that the parts have started, which end with the
        # parts. A task that fails cancels the body of this context, and so ends the job.
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        spawn: Spawn = tasks.create_task
        route = await _route(inputs, site, shared is not None, stack)

        async def refill() -> None:
            # The outbox needs the queue and is made after it; nobody calls this before both are there.
            count = await outbox.refill()
            say(f"the queue host was lost and is back; {count} waiting groups were put again")

        queue = _queue(inputs, site, stack, spawn, refill)
        # The pool and the fleet know each other: an engine's death is the fleet's to answer.
        pool = EnginePool(time.time, lambda slot, why: fleet.lost(slot, why), policy_of(job.spec))
        if inputs.events_folder is not None:
            # Of the driver alone: on one machine the other workers are its children, and tell themselves.
            sampler = UseSampler(
                ProcessUse(children=False),
                lambda began, seconds, values: events.add("usage", pool.step, began, seconds, **values),
            )
            sampler.start()
            stack.callback(sampler.stop)
        rewards = _rewards(inputs, stack)
        starts: dict[str, WorkerStart] = {}

        def started(worker: str, pool: str, found: Sequence[StartPart]) -> None:
            if found:
                starts[worker] = WorkerStart(worker, pool, tuple(found))

        trainer = RayTrainer(
            job, settings, options, queue, inputs.events_folder, event_ranks, route, shared, started
        )
        stack.push_async_callback(trainer.close)
        placement = RankPlacement(
            site, settings.trainer_ranks // job.spec.pools.trainer.replicas,
            job.spec.run_policy.start_deadline_seconds, lambda: stop.asked,
        )  # fmt: skip
        engines = EngineSync(pool, timeouts.weight_update_seconds, timeouts.stall_seconds)
        sync = Push(engines, settings.in_flight) if settings.in_flight else Pull(engines, spawn)
        delivery = WeightDelivery(trainer, sync, pool, settings.bound)
        workers = RolloutWorkers(
            job, inputs.tokenizer, shared, site.one_machine, inputs.events_folder, event_ranks, route,
            site.keyring, lambda: pool.step, started,
        )  # fmt: skip
        stack.callback(workers.close)
        fleet = Fleet(
            workers, pool, sync, delivery.send_again, delivery.may_join, site, spawn, say,
            _fleet_times(job), time.time,
        )  # fmt: skip
        made: list[Parts] = []
        # Runs after `fleet.close`: what engines did last is written too.
        stack.callback(lambda: _end_records(made))
        # Ends before the trainer does, whose weights a worker that is just starting would miss.
        stack.push_async_callback(fleet.close)
        # Engines take the longest to start, and wait for nothing of what follows.
        fleet.adjust()
        await queue.start()
        await rewards.start()
        outbox = Outbox(queue.client, events, timeouts.stall_seconds)
        failures = _failures(inputs)
        lengths = LengthLog(options.folder, _lengths_header(inputs))
        curriculum = _curriculum(inputs)
        scorer: Scorer = RecordingScorer(WatchedScorer(_taught(inputs, rewards), failures), lengths)
        if curriculum is not None:
            scorer = MeasuringScorer(scorer, curriculum)
        # It has no prompts and a new job's controller until `Recovery` knows where the job stands and gives
        # it others.
        rollouter = Rollouter(
            settings.rollout, pool, settings.controller(Ledger()), _prompts(inputs, curriculum), Ledger(),
            iter(()), scorer, outbox, events,
        )  # fmt: skip
        activity = JobActivity(pool, fleet, rollouter, partial(_scored, inputs, rewards))
        evaluated_on = EvaluationEngines(pool, sync, _set_aside(job), spawn, say, delivery.send_again)
        parts = Parts(
            site, stop, events, lengths, pool, queue, outbox, rollouter, failures, trainer, placement,
            TrainerStart(trainer, placement, inputs.checkpoints, site.one_machine, say),
            _sample_keeper(inputs, outbox, spawn), sync, delivery, fleet, activity, spawn, say,
            _evaluations(inputs, rollouter, rewards, delivery, evaluated_on), curriculum, starts,
        )  # fmt: skip
        made.append(parts)
        yield parts


async def _route(inputs: JobInputs, site: Site, shared: bool, stack: AsyncExitStack) -> WeightRoute:
    """The way of the weights from the trainer to the engines, once the initial model is there; `shared`:
    whether workers share accelerators."""
    job, options = inputs.job, inputs.options
    # In threads: a large model takes long to write, and the loop has signals to answer meanwhile.
    with inputs.start.part("model"):
        model_folder = await asyncio.to_thread(engine_model, job, options, inputs.tokenizer)
    adapter = job.spec.training.adapter
    await asyncio.to_thread(keep_model_files, model_folder, inputs.tokenizer, options.folder, adapter)
    address = None if site.one_machine else site.address
    route = await asyncio.to_thread(
        open_route, job, model_folder, options.folder, address, site.keyring, shared
    )
    stack.callback(route.close)
    return route


def _end_records(made: Sequence[Parts]) -> None:
    """Write what the job recorded, if it got as far as having all of its parts."""
    for parts in made:
        parts.flush_records()
        log.info("at the end: %s", parts.rollouter.counts)


def _queue(
    inputs: JobInputs, site: Site, stack: AsyncExitStack, spawn: Spawn, refill: Callable[[], Awaitable[None]]
) -> QueueService:
    """The queue, to be started; `refill` is called when a new host has taken the place of a lost one."""
    address = None if site.one_machine else site.address
    queue = QueueService(inputs.settings.capacity_samples, site.home, address, site.keyring, spawn, refill)
    stack.push_async_callback(queue.close)
    return queue


def _rewards(inputs: JobInputs, stack: AsyncExitStack) -> RewardPool:
    """The reward functions in worker processes, to be started."""
    training = inputs.job.spec.training
    rewards = RewardPool(
        calls_of(training.reward),
        timeout_seconds=training.reward.timeout_seconds,
        workers=training.reward.workers,
        search_path=[inputs.options.manifest_folder],
        log=inputs.rewards_log,
        host=inputs.options.reward_host,
    )
    stack.push_async_callback(rewards.close)
    return rewards


def _scorer(inputs: JobInputs, rewards: RewardPool) -> PoolScorer:
    training = inputs.job.spec.training
    return PoolScorer(
        rewards, inputs.tokenizer, training.rollout.max_response_tokens, training.reward.overlong
    )


def _taught(inputs: JobInputs, rewards: RewardPool) -> Scorer:
    """What scores the responses that are trained: with the teacher's log-probabilities where a server has
    it."""
    scorer = _scorer(inputs, rewards)
    return scorer if inputs.teacher is None else TaughtScorer(scorer, inputs.teacher, time.monotonic)


def _failures(inputs: JobInputs) -> RewardFailures:
    teacher = "" if inputs.teacher is None else inputs.teacher.in_words
    return RewardFailures(in_words(calls_of(inputs.job.spec.training.reward)), inputs.rewards_log, teacher)


def _scored(inputs: JobInputs, rewards: RewardPool) -> int:
    """How often a reward function or a served teacher was done with a response."""
    taught = inputs.teacher.ended if inputs.teacher is not None else 0
    return rewards.counters.submitted - rewards.counters.pending + taught


def _curriculum(inputs: JobInputs) -> Curriculum | None:
    training, prompts = inputs.job.spec.training, inputs.prompts
    wanted = training.data.curriculum
    if wanted is None:
        return None
    return Curriculum(wanted, training.data.pass_reward, training.seed, prompts.usable, prompts.row)


def _prompts(inputs: JobInputs, curriculum: Curriculum | None) -> Callable[[int], Prompt]:
    """The prompt of each uid: at its place in the order, or where the curriculum places it."""
    prompts = inputs.prompts
    if curriculum is None:
        return prompts.prompt
    return lambda uid: prompts.prompt(uid, curriculum.place(uid))


def _sample_keeper(inputs: JobInputs, outbox: Outbox, spawn: Spawn) -> SampleKeeper:
    training = inputs.job.spec.training
    estimate = estimator(training.algorithm, [inputs.options.manifest_folder])
    return SampleKeeper(
        training.profiling.samples_per_step, SampleLog(inputs.options.folder), outbox, inputs.tokenizer,
        inputs.settings.bound, estimate, training.seed, spawn, time.time,
    )  # fmt: skip


def _evaluations(
    inputs: JobInputs,
    rollouter: Rollouter,
    rewards: RewardPool,
    delivery: WeightDelivery,
    engines: EvaluationEngines,
) -> Evaluations | None:
    training = inputs.job.spec.training
    wanted, rollout = training.evaluation, training.rollout
    if wanted is None:
        return None

    def pin(step: int | None) -> None:
        delivery.pinned = step

    settings = EvaluatorSettings(
        wanted.samples_per_prompt, rollout.max_response_tokens, training.seed,
        evaluation_sampling(rollout, wanted.sampling, inputs.tokenizer.stop_ids),
        training.profiling.samples_per_step,
    )  # fmt: skip
    # How long responses are is no part of how good they are.
    scorer = PoolScorer(rewards, inputs.tokenizer, rollout.max_response_tokens, overlong=None)
    evaluator = Evaluator(
        inputs.held_out, settings, rollouter.pool, rollouter.responder, scorer, rollouter.poke
    )
    return Evaluations(
        EvaluationSchedule(wanted.every_versions, training.async_.steps_per_version), evaluator,
        wanted.pass_reward, EvaluationLog(inputs.options.folder), inputs.tokenizer, time.time, pin,
        engines,
    )  # fmt: skip


def _set_aside(job: RLJob) -> PoolShare | None:
    """What is set aside for an evaluation."""
    evaluation = job.spec.training.evaluation
    if evaluation is None or evaluation.engines.shared is not None:
        return None
    pool, count = evaluation.engines.chosen
    return PoolShare("fast" if pool == "fast_rollout" else "heavy", count)


def _lengths_header(inputs: JobInputs) -> TraceHeader:
    rollout = inputs.settings.rollout
    return TraceHeader(rollout.samples_per_prompt, rollout.max_response_tokens, inputs.prompts.fingerprint)


def _fleet_times(job: RLJob) -> FleetTimes:
    timeouts = job.spec.training.timeouts
    return FleetTimes(
        pods=job.spec.run_policy.start_deadline_seconds,
        start=timeouts.start_seconds,
        load=timeouts.weight_update_seconds,
    )
