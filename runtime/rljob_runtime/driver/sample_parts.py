"""Makes the parts that turn prompts into scored groups in the queue, and those that evaluate.

Guarantees: nothing is started here.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from rljob_api import RLJob
from rljob_runtime.data.length_trace import TraceHeader
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.driver.evaluations import Evaluations
from rljob_runtime.driver.job_inputs import Assembly, JobInputs
from rljob_runtime.driver.measuring_scorer import MeasuringScorer
from rljob_runtime.driver.recording_scorer import RecordingScorer
from rljob_runtime.driver.reward_failures import RewardFailures
from rljob_runtime.driver.sample_keeper import SampleKeeper
from rljob_runtime.driver.watched_scorer import WatchedScorer
from rljob_runtime.driver.worker_parts import WorkerParts
from rljob_runtime.engines.sampling import evaluation_sampling
from rljob_runtime.evaluation.engines import PoolShare
from rljob_runtime.evaluation.schedule import EvaluationSchedule
from rljob_runtime.groups.curriculum import Curriculum
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.objective.advantages import estimator
from rljob_runtime.queue.service import QueueService
from rljob_runtime.rewards.calls import calls_of, in_words
from rljob_runtime.rewards.pool import RewardPool
from rljob_runtime.rollout.evaluation_engines import EvaluationEngines
from rljob_runtime.rollout.evaluator import Evaluator, EvaluatorSettings
from rljob_runtime.rollout.outbox import Outbox
from rljob_runtime.rollout.rollouter import Rollouter, Scorer
from rljob_runtime.rollout.scorer import PoolScorer
from rljob_runtime.rollout.taught_scorer import TaughtScorer
from rljob_runtime.samples import Prompt
from rljob_runtime.trace.record.evaluation_log import EvaluationLog
from rljob_runtime.trace.record.length_log import LengthLog
from rljob_runtime.trace.record.sample_log import SampleLog


@dataclass(frozen=True)
class SampleParts:
    """The parts of `Parts` with these names."""

    outbox: Outbox
    rollouter: Rollouter
    rewards: RewardFailures
    lengths: LengthLog
    says: SampleKeeper
    curriculum: Curriculum | None
    evaluations: Evaluations | None


def sample_parts(
    assembly: Assembly, queue: QueueService, rewards: RewardPool, workers: WorkerParts
) -> SampleParts:
    """What has `workers` generate, and what becomes of the responses; queue and reward functions run."""
    inputs = assembly.inputs
    training, settings = inputs.job.spec.training, inputs.settings
    outbox = Outbox(
        queue.client, assembly.events, training.timeouts.stall_seconds, workers.trainer.fetch_ahead
    )
    failures = _failures(inputs)
    lengths = LengthLog(inputs.options.folder, _lengths_header(inputs))
    curriculum = _curriculum(inputs)
    scorer: Scorer = RecordingScorer(WatchedScorer(_taught(inputs, rewards), failures), lengths)
    if curriculum is not None:
        scorer = MeasuringScorer(scorer, curriculum)
    # It has no prompts and a new job's controller until `Recovery` knows where the job stands and gives it
    # others.
    rollouter = Rollouter(
        settings.rollout, workers.pool, settings.controller(Ledger()), _prompts(inputs.prompts, curriculum),
        Ledger(), iter(()), scorer, outbox, assembly.events,
    )  # fmt: skip
    return SampleParts(
        outbox=outbox,
        rollouter=rollouter,
        rewards=failures,
        lengths=lengths,
        says=_sample_keeper(assembly, outbox),
        curriculum=curriculum,
        evaluations=_evaluations(assembly, rollouter, rewards, workers),
    )


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


def _curriculum(inputs: JobInputs) -> Curriculum | None:
    training, prompts = inputs.job.spec.training, inputs.prompts
    wanted = training.data.curriculum
    if wanted is None:
        return None
    return Curriculum(wanted, training.data.pass_reward, training.seed, prompts.usable, prompts.row)


def _prompts(prompts: PromptSource, curriculum: Curriculum | None) -> Callable[[int], Prompt]:
    """The prompt of each uid: at its place in the order, or where the curriculum places it."""
    if curriculum is None:
        return prompts.prompt
    return lambda uid: prompts.prompt(uid, curriculum.place(uid))


def _sample_keeper(assembly: Assembly, outbox: Outbox) -> SampleKeeper:
    inputs = assembly.inputs
    training = inputs.job.spec.training
    estimate = estimator(training.algorithm, [inputs.options.manifest_folder])
    return SampleKeeper(
        training.profiling.samples_per_step, SampleLog(inputs.options.folder), outbox, inputs.tokenizer,
        inputs.settings.bound, estimate, training.seed, assembly.spawn, time.time,
    )  # fmt: skip


def _evaluations(
    assembly: Assembly, rollouter: Rollouter, rewards: RewardPool, workers: WorkerParts
) -> Evaluations | None:
    inputs, delivery = assembly.inputs, workers.delivery
    training = inputs.job.spec.training
    wanted, rollout = training.evaluation, training.rollout
    if wanted is None:
        return None

    def pin(step: int | None) -> None:
        delivery.pinned = step

    engines = EvaluationEngines(
        workers.pool, workers.sync, _set_aside(inputs.job), assembly.spawn, assembly.say, delivery.send_again
    )
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
