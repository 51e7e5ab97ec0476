"""Everything about learning: the `training` block of an RLJob."""

from typing import ClassVar

from pydantic import Field

from rljob_api.adapter import ADAPTER_RULES, Adapter
from rljob_api.algorithm import Algorithm, Optimizer
from rljob_api.base import Model, Rule
from rljob_api.compute import Compute
from rljob_api.data import Data, PromptData, Reward
from rljob_api.evaluation import Evaluation, EvaluationSet
from rljob_api.loggers import Loggers
from rljob_api.model import PolicyModel, Tokenizer
from rljob_api.rollout import Rollout
from rljob_api.schedule import Async, Checkpoint, Parallel, Profiling, Schedule
from rljob_api.timeouts import Timeouts


class Training(Model):
    """What is learned, from what, and how."""

    model: PolicyModel
    """The policy."""
    adapter: Adapter | None = None
    """Train an adapter (LoRA) and leave the model's own weights as they are; null trains all weights."""
    tokenizer: Tokenizer | None = None
    """How text becomes tokens. Default: the tokenizer in the model's folder."""
    data: Data
    """The prompts."""
    reward: Reward
    """How responses are scored."""
    rollout: Rollout = Rollout()
    """How responses are generated."""
    evaluation: Evaluation | None = None
    """How well it does on prompts that are not trained, measured while it is trained; null measures
    nothing."""
    algorithm: Algorithm = Algorithm()
    """How rewards become a loss."""
    optimizer: Optimizer = Optimizer()
    """AdamW and its learning-rate schedule."""
    schedule: Schedule
    """Steps and batches."""
    async_: Async = Field(default=Async(), alias="async")
    """How far generation may run ahead."""
    parallel: Parallel = Parallel()
    """How the trainer splits its work."""
    compute: Compute = Compute()
    """How the trainer uses its devices and its processors."""
    checkpoint: Checkpoint = Checkpoint()
    """When checkpoints are written, where, and how many are kept."""
    profiling: Profiling = Profiling()
    """What is recorded about where time goes."""
    loggers: Loggers = Loggers()
    """Where metrics are sent beside the run's folder."""
    timeouts: Timeouts = Timeouts()
    """How long the parts of the job may take."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of everything random: weights of a random model, order of the data, sampling."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="tokenizer must be set: a random model has none of its own",
            cel="!has(self.model.random) || has(self.tokenizer)",
            holds=lambda self: self.model.random is None or self.tokenizer is not None,
            fields=("tokenizer",),
        ),
        Rule(
            message="parallel.tensorParallel must divide model.random.experts.count",
            cel="!has(self.model.random) || !has(self.model.random.experts)"
            " || self.model.random.experts.count % self.parallel.tensorParallel == 0",
            holds=lambda self: (
                self.model.random is None
                or self.model.random.experts is None
                or self.model.random.experts.count % self.parallel.tensor_parallel == 0
            ),
            fields=("parallel.tensorParallel", "model.random.experts"),
        ),
        Rule(
            message="rollout.engine.torch cannot run experts (model.random.experts): set rollout.engine.vllm",
            cel="!has(self.rollout.engine) || !has(self.rollout.engine.torch) || !has(self.model.random)"
            " || !has(self.model.random.experts)",
            holds=lambda self: (
                self.rollout.engine.torch is None
                or self.model.random is None
                or self.model.random.experts is None
            ),
            fields=("rollout.engine.torch", "model.random.experts"),
        ),
        Rule(
            message="model.random.vocabularySize must hold tokenizer.characters.alphabet and 4 more tokens",
            cel="!has(self.model.random) || !has(self.model.random.vocabularySize)"
            " || !has(self.tokenizer) || !has(self.tokenizer.characters)"
            " || self.model.random.vocabularySize >= size(self.tokenizer.characters.alphabet) + 4",
            holds=lambda self: (
                self.model.random is None
                or self.model.random.vocabulary_size is None
                or self.tokenizer is None
                or self.tokenizer.characters is None
                or self.model.random.vocabulary_size >= len(self.tokenizer.characters.alphabet) + 4
            ),
            fields=("model.random.vocabularySize", "tokenizer.characters.alphabet"),
        ),
        Rule(
            message="data.maxPromptTokens + rollout.maxResponseTokens must not be above "
            "model.random.maxPositionEmbeddings",
            cel="!has(self.model.random) || self.data.maxPromptTokens + self.rollout.maxResponseTokens"
            " <= self.model.random.maxPositionEmbeddings",
            holds=lambda self: (
                self.model.random is None
                or self.longest_sample_tokens <= self.model.random.max_position_embeddings
            ),
            fields=(
                "data.maxPromptTokens",
                "rollout.maxResponseTokens",
                "model.random.maxPositionEmbeddings",
            ),
        ),
        Rule(
            message="reward.overlong.bufferTokens must not be above rollout.maxResponseTokens",
            cel="!has(self.reward.overlong)"
            " || self.reward.overlong.bufferTokens <= self.rollout.maxResponseTokens",
            holds=lambda self: (
                self.reward.overlong is None
                or self.reward.overlong.buffer_tokens <= self.rollout.max_response_tokens
            ),
            fields=("reward.overlong.bufferTokens", "rollout.maxResponseTokens"),
        ),
        Rule(
            message="rollout.samplesPerPrompt must be 2 or more with algorithm.advantage rloo, maxRl and"
            " reinforcePlusPlus with baseline: a single response is compared with nothing",
            cel="self.rollout.samplesPerPrompt >= 2 || !has(self.algorithm.advantage)"
            " || !has(self.algorithm.advantage.rloo) && !has(self.algorithm.advantage.maxRl)"
            " && (!has(self.algorithm.advantage.reinforcePlusPlus)"
            " || !self.algorithm.advantage.reinforcePlusPlus.baseline)",
            holds=lambda self: (
                self.rollout.samples_per_prompt >= 2 or not self.algorithm.advantage.compares_in_groups
            ),
            fields=("rollout.samplesPerPrompt",),
        ),
        Rule(
            message="reward.overlong must not be set with algorithm.advantage.maxRl, whose rewards must be 0"
            " or more: it is a punishment",
            cel="!has(self.reward.overlong) || !has(self.algorithm.advantage)"
            " || !has(self.algorithm.advantage.maxRl)",
            holds=lambda self: self.reward.overlong is None or self.algorithm.advantage.max_rl is None,
            fields=("reward.overlong",),
        ),
        Rule(
            message="algorithm.distillation.teacher.path must not be model.path: the policy begins as that"
            " model and would be held there, which algorithm.kl does",
            cel="!has(self.algorithm.distillation) || !has(self.algorithm.distillation.teacher.path)"
            " || !has(self.model.path) || self.algorithm.distillation.teacher.path != self.model.path",
            holds=lambda self: (
                self.algorithm.teacher_folder is None or self.algorithm.teacher_folder != self.model.path
            ),
            fields=("algorithm.distillation.teacher.path", "model.path"),
        ),
        Rule(
            message="rollout.temperature must be 1 with algorithm.distillation.teacher.server: a server gives"
            " the log-probabilities of a prompt's tokens at temperature 1, with which the policy's could not"
            " be compared",
            cel="!has(self.algorithm.distillation) || !has(self.algorithm.distillation.teacher.server)"
            " || self.rollout.temperature == 1.0",
            holds=lambda self: self.algorithm.teacher_server is None or self.rollout.temperature == 1,
            fields=("rollout.temperature",),
        ),
        Rule(
            message="rollout.filter must be empty with algorithm.advantage.none, with which groups teach"
            " alike whatever their rewards",
            cel="!has(self.rollout.filter.zeroVariance) && !has(self.rollout.filter.passRate)"
            " || !has(self.algorithm.advantage) || !has(self.algorithm.advantage.none)",
            holds=lambda self: (
                self.rollout.filter.max_refill is None or self.algorithm.advantage.none is None
            ),
            fields=("rollout.filter",),
        ),
        Rule(
            message="reward.overlong must not be set with algorithm.advantage.none, with which rewards teach"
            " nothing",
            cel="!has(self.reward.overlong) || !has(self.algorithm.advantage)"
            " || !has(self.algorithm.advantage.none)",
            holds=lambda self: self.reward.overlong is None or self.algorithm.advantage.none is None,
            fields=("reward.overlong",),
        ),
        Rule(
            message="async.queueCapacity must hold one step's samples (schedule.promptsPerBatch * "
            "schedule.batchesPerStep * rollout.samplesPerPrompt), or training would wait for ever",
            cel="!has(self.async.queueCapacity) || self.async.queueCapacity >= self.schedule.promptsPerBatch"
            " * self.schedule.batchesPerStep * self.rollout.samplesPerPrompt",
            holds=lambda self: (
                self.async_.queue_capacity is None
                or self.async_.queue_capacity >= self.groups_per_step * self.rollout.samples_per_prompt
            ),
            fields=(
                "async.queueCapacity",
                "schedule.promptsPerBatch",
                "schedule.batchesPerStep",
                "rollout.samplesPerPrompt",
            ),
        ),
        Rule(
            message="rollout.routing.probe.heavyShare of a cohort must be one prompt or more: heavyShare * "
            "cohortPrompts (default: schedule.promptsPerBatch * schedule.batchesPerStep)",
            cel="!has(self.rollout.routing) || !has(self.rollout.routing.probe)"
            " || self.rollout.routing.probe.heavyShare * double(has(self.rollout.routing.probe.cohortPrompts)"
            " ? self.rollout.routing.probe.cohortPrompts"
            " : self.schedule.promptsPerBatch * self.schedule.batchesPerStep) >= 1.0",
            holds=lambda self: (
                self.rollout.routing is None
                or self.rollout.routing.probe is None
                or self.rollout.routing.probe.heavy_share
                * (self.rollout.routing.probe.cohort_prompts or self.groups_per_step)
                >= 1
            ),
            fields=(
                "rollout.routing.probe.heavyShare",
                "rollout.routing.probe.cohortPrompts",
                "schedule.promptsPerBatch",
                "schedule.batchesPerStep",
            ),
        ),
        Rule(
            message="rollout.overSampling must not be set with async.staleTokens: mask, where no step waits "
            "for the slowest responses anyway",
            cel="!has(self.rollout.overSampling) || self.async.staleTokens == 'wait'",
            holds=lambda self: self.rollout.over_sampling is None or self.async_.stale_tokens == "wait",
            fields=("rollout.overSampling", "async.staleTokens"),
        ),
        Rule(
            message="rollout.overSampling.rate must make a group at least of those of a weight version "
            "(schedule.promptsPerBatch * schedule.batchesPerStep * async.stepsPerVersion)",
            cel="!has(self.rollout.overSampling) || self.rollout.overSampling.rate"
            " * double(self.schedule.promptsPerBatch * self.schedule.batchesPerStep"
            " * self.async.stepsPerVersion) >= 1.0",
            holds=lambda self: (
                self.rollout.over_sampling is None
                or self.rollout.over_sampling.rate * self.groups_per_step * self.async_.steps_per_version >= 1
            ),
            fields=(
                "rollout.overSampling.rate",
                "schedule.promptsPerBatch",
                "schedule.batchesPerStep",
                "async.stepsPerVersion",
            ),
        ),
        Rule(
            message="evaluation.sets: data.maxPromptTokens of a set must not be above that of training.data, "
            "for which engines are made",
            cel="!has(self.evaluation)"
            " || self.evaluation.sets.all(x, !has(x.data.maxPromptTokens)"
            " || x.data.maxPromptTokens <= self.data.maxPromptTokens)",
            holds=lambda self: not self.sets_of_long_prompts,
            named=lambda self: [
                f"of {each.name} it is {each.data.max_prompt_tokens}" for each in self.sets_of_long_prompts
            ],
            fields=("evaluation.sets", "data.maxPromptTokens"),
        ),
        Rule(
            message="data.curriculum must not be set with schedule.epochs: set schedule.totalSteps, since how"
            " many prompts of an epoch are passed over is not known before",
            cel="!has(self.data.curriculum) || has(self.schedule.totalSteps)",
            holds=lambda self: self.data.curriculum is None or self.schedule.total_steps is not None,
            fields=("data.curriculum",),
        ),
        Rule(
            message="optimizer.warmupUpdates must not be above the job's updates (schedule.totalSteps * "
            "schedule.batchesPerStep)",
            cel="!has(self.schedule.totalSteps) || self.optimizer.warmupUpdates"
            " <= self.schedule.totalSteps * self.schedule.batchesPerStep",
            holds=lambda self: (
                self.schedule.total_steps is None
                or self.optimizer.warmup_updates <= self.schedule.total_steps * self.schedule.batches_per_step
            ),
            fields=("optimizer.warmupUpdates", "schedule.totalSteps", "schedule.batchesPerStep"),
        ),
        *ADAPTER_RULES,
    )

    @property
    def groups_per_step(self) -> int:
        """Prompts that one step trains."""
        return self.schedule.prompts_per_batch * self.schedule.batches_per_step

    @property
    def held_out(self) -> tuple[PromptData, ...]:
        """The prompts of each set of `evaluation`, with what it does not set taken from `data`."""
        sets = self.evaluation.sets if self.evaluation is not None else []
        return tuple(self.data.completed(each.data) for each in sets)

    @property
    def sets_of_long_prompts(self) -> list[EvaluationSet]:
        """Sets of `evaluation` whose prompts may be longer than those of `data`."""
        sets, most = self.evaluation.sets if self.evaluation is not None else [], self.data.max_prompt_tokens
        return [each for each in sets if (each.data.max_prompt_tokens or 0) > most]

    @property
    def longest_sample_tokens(self) -> int:
        """Most tokens that a prompt and its response may have together."""
        return self.data.max_prompt_tokens + self.rollout.max_response_tokens
