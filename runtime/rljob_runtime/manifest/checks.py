"""What a manifest refers to: the model's folder, tokenizer, data and reward, checked before a job starts.

Guarantees: nothing is downloaded and no weights are loaded; each thing is checked even when another is
wrong, as far as it does not need it; a few seconds at most. Reward functions are tried on the first rows
of the data in a process of their own, and imported in this one first, unless a host runs them as another
user; losses and advantages of the job's own are imported and tried in this one.
"""

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_api.model import RandomModel
from rljob_runtime.job_errors import OwnFunctionFailed
from rljob_runtime.manifest.adapters import check_adapter
from rljob_runtime.manifest.cache_size import check_cache_size
from rljob_runtime.manifest.load import Finding, Manifest
from rljob_runtime.manifest.logger_packages import check_loggers
from rljob_runtime.manifest.traps import traps
from rljob_runtime.own_functions import ArgumentError, FunctionLoadError
from rljob_runtime.parallel.rank_layout import unfit
from rljob_runtime.weights.model_files import (
    ModelFolderError,
    check_model_type,
    folder_parameters,
    read_config,
)

if TYPE_CHECKING:
    from rljob_runtime.data.fingerprint import DataFingerprint
    from rljob_runtime.data.prompts import Epoch
    from rljob_runtime.rewards.calls import FunctionCall
    from rljob_runtime.rewards.load import Refusal

_TRAINING = ("spec", "training")
_TENSOR_PARALLEL = (*_TRAINING, "parallel", "tensorParallel")
_MODEL_PATH = (*_TRAINING, "model", "path")
_NEED_ANSWERS = ("rljob_runtime.rewards.math:math_answer",)
"""Built-in rewards that compare with the prompt's answer."""


def check(manifest: Manifest) -> tuple[list[Finding], list[Finding]]:
    """Everything that is wrong with what the manifest refers to, and what may be."""
    errors, warnings = check_job(manifest.job, manifest.folder)
    return [manifest.find(each) for each in errors], [manifest.find(each) for each in warnings]


def check_job(job: RLJob, folder: Path, host: Path | None = None) -> tuple[list[Problem], list[Problem]]:
    """Everything that is wrong with what a job refers to, and what may be wrong; relative paths are relative
    to `folder`. `host`: the socket of the host of reward workers, which alone imports the job's own code;
    raises `WorkerStartError` where it starts none."""
    from rljob_runtime.manifest.reward_trial import try_job_reward

    errors, epoch = _drained(_check_references(job, folder, host))
    # Rewards are tried on the data by the tokenizer: all of them must be right.
    tried = try_job_reward(job, folder, host) if not errors else []
    errors += [problem for problem, certain in tried if certain]
    return errors, [
        *(problem for problem, certain in tried if not certain),
        *traps(job, epoch.rows if epoch else None),
    ]


def fingerprint(job: RLJob, folder: Path) -> "DataFingerprint | None":
    """What identifies the job's prompts; None where they cannot be read now, or not all of them at once."""
    _, epoch = _drained(_check_texts(job, folder))
    return epoch.fingerprint if epoch is not None else None


def random_parameters(shape: RandomModel, vocabulary_size: int) -> int:
    """Number of parameters of a random model, norms and biases left out (below 1 %)."""
    # Query and output have the width of all heads, key and value that of the shared ones.
    heads = 2 * shape.attention_heads + 2 * shape.key_value_heads
    # The three matrices of the feed-forward layer, or of each expert: gate, up, down. A router has a number
    # for each expert.
    width, router = shape.intermediate_size, 0
    if shape.experts is not None:
        width, router = shape.experts.count * shape.experts.intermediate_size, shape.experts.count
    layer = shape.hidden_size * (heads * shape.head_dim + 3 * width + router)
    embeddings = 1 if shape.tie_word_embeddings else 2
    return shape.layers * layer + embeddings * vocabulary_size * shape.hidden_size


def model_parameters(job: RLJob, folder: Path) -> int:
    """Number of parameters of the job's policy; `folder` is the manifest's."""
    from rljob_runtime.data.tokenizer import build_tokenizer

    model = job.spec.training.model
    if model.random is None:
        return folder_parameters(folder / str(model.path))
    size = model.random.vocabulary_size
    if size is None:
        size = build_tokenizer(job.spec.training.tokenizer, folder, None).vocabulary_size
    return random_parameters(model.random, size)


def _drained(found: "Generator[Problem, None, Epoch | None]") -> "tuple[list[Problem], Epoch | None]":
    """All that is found, and what is returned in the end."""
    problems = []
    while True:
        try:
            problems.append(next(found))
        except StopIteration as end:
            return problems, end.value


def _check_references(
    job: RLJob, folder: Path, host: Path | None
) -> "Generator[Problem, None, Epoch | None]":
    """Returns the data's epoch, as far as it is known."""
    yield from _check_reward(job, folder, host)
    yield from _check_own_functions(job, folder)
    yield from check_loggers(job.spec.training.loggers)
    epoch = yield from _check_texts(job, folder)
    yield from _check_forced_lengths(job, folder, epoch)
    return epoch


def _check_reward(job: RLJob, folder: Path, host: Path | None) -> Iterator[Problem]:
    from rljob_runtime.rewards.calls import calls_of

    reward = job.spec.training.reward
    calls = calls_of(reward)
    for refusal in _refusals(calls, folder) if host is None else _hosted_refusals(calls, folder, host):
        path: tuple[str | int, ...] = (*_TRAINING, "reward")
        own = reward.functions[refusal.call].arguments if reward.functions is not None else {}
        if reward.functions is not None:
            path = (*path, "functions", refusal.call)
        if refusal.of_arguments:
            named = (refusal.argument,) if refusal.argument is not None else ()
            # What all functions are given stands one level above.
            where = (*_TRAINING, "reward") if refusal.argument in reward.arguments.keys() - own else path
            yield Problem((*where, "arguments", *named), _clause(refusal.message))
        else:
            yield Problem((*path, "function"), _clause(refusal.message))


def _refusals(calls: "Sequence[FunctionCall]", folder: Path) -> "Iterator[Refusal]":
    from rljob_runtime.rewards.load import load_reward, refusal_of

    for index, call in enumerate(calls):
        with _unchanged_search_path():
            try:
                load_reward(call.function, call.arguments, [folder])
            except FunctionLoadError as error:
                yield refusal_of(error, index)


def _hosted_refusals(calls: "Sequence[FunctionCall]", folder: Path, host: Path) -> "Iterator[Refusal]":
    from rljob_runtime.rewards.trial import hosted_refusal

    # The first alone: a worker that cannot have one function looks at no other.
    if (refusal := hosted_refusal(calls, [folder], host)) is not None:
        yield refusal


def _check_own_functions(job: RLJob, folder: Path) -> Iterator[Problem]:
    """Loss and advantages of the job's own: loaded, and tried."""
    training = job.spec.training
    trials: list[tuple[str, Callable[[], None]]] = []
    if training.algorithm.policy_loss.custom is not None:
        from rljob_runtime.objective.trial import try_own_loss

        trials.append(("policyLoss", partial(try_own_loss, training.algorithm, [folder])))
    if training.algorithm.advantage.custom is not None:
        from rljob_runtime.objective.trial import try_own_advantage

        samples = training.rollout.samples_per_prompt
        trials.append(("advantage", partial(try_own_advantage, training.algorithm, samples, [folder])))
    for union, attempt in trials:
        path = (*_TRAINING, "algorithm", union, "custom")
        with _unchanged_search_path():
            try:
                attempt()
            except ArgumentError as error:
                named = (error.argument,) if error.argument is not None else ()
                yield Problem((*path, "arguments", *named), _clause(error))
            except (FunctionLoadError, OwnFunctionFailed) as error:
                yield Problem((*path, "function"), _clause(error))


def _check_texts(job: RLJob, folder: Path) -> "Generator[Problem, None, Epoch | None]":
    """Model, tokenizer and data, which must fit one another. Returns the data's epoch, as far as it is
    known."""
    from rljob_runtime.data.errors import DataError
    from rljob_runtime.data.prompts import check_data
    from rljob_runtime.data.tokenizer import build_tokenizer, check_vocabulary
    from rljob_runtime.manifest.data_problem import data_problem
    from rljob_runtime.manifest.evaluation_check import check_evaluation
    from rljob_runtime.manifest.teacher_check import check_teacher, check_teacher_alone
    from rljob_runtime.rewards.calls import calls_of

    training = job.spec.training
    model_folder = folder / training.model.path if training.model.path is not None else None
    config: dict[str, Any] = {}
    if model_folder is not None:
        try:
            config = read_config(model_folder)
            folder_parameters(model_folder)
            check_model_type(model_folder, config)
        except ModelFolderError as error:
            yield Problem(_MODEL_PATH, _clause(error))
            # It would be the one in the model's folder.
            if training.tokenizer is None:
                if (problem := check_teacher_alone(job, folder)) is not None:
                    yield problem
                return None
        else:
            yield from check_adapter(job, folder, config)
        yield from _check_length(job, config)
    else:
        yield from check_adapter(job, folder, config)
    if (why := unfit(training.parallel.tensor_parallel, _divided(job, config))) is not None:
        yield Problem(_TENSOR_PARALLEL, why)
    if (small := check_cache_size(job, config)) is not None:
        yield small
    tokenizer_path = (*_TRAINING, "tokenizer") if training.tokenizer is not None else _MODEL_PATH
    try:
        tokenizer = build_tokenizer(training.tokenizer, folder, model_folder)
        vocabulary_size = _vocabulary_size(job, config)
        if vocabulary_size is not None:
            check_vocabulary(tokenizer, vocabulary_size)
    except DataError as error:
        yield Problem(tokenizer_path, _clause(error))
        return None
    yield from check_teacher(job, folder, tokenizer, _drawn(job, tokenizer.vocabulary_size, vocabulary_size))
    try:
        needed = any(call.function in _NEED_ANSWERS for call in calls_of(training.reward))
        epoch = check_data(training.data, tokenizer, training.seed, folder, answers_needed=needed)
    except DataError as error:
        yield data_problem(training.data, error)
    else:
        yield from check_evaluation(training, tokenizer, folder, needed)
        return epoch
    return None


def _check_forced_lengths(job: RLJob, folder: Path, epoch: "Epoch | None") -> Iterator[Problem]:
    """`epoch`: of the job's data, where it is known; what is left is checked when the job has read its data,
    before anything is started."""
    from rljob_runtime.data.forced_lengths import forced_lengths
    from rljob_runtime.data.length_trace import LengthTraceError

    training, groups = job.spec.training, None
    if training.schedule.total_steps is not None:
        groups = training.schedule.total_steps * training.groups_per_step
    elif epoch is not None:
        groups = (training.schedule.epochs or 1) * epoch.rows
    data = epoch.fingerprint if epoch is not None else None
    try:
        forced_lengths(training.rollout, folder, groups, data)
    except LengthTraceError as error:
        yield Problem((*_TRAINING, "rollout", "forcedLengths"), _clause(error))


def _vocabulary_size(job: RLJob, config: dict[str, Any]) -> int | None:
    """Tokens that the model knows; None where it is made to fit the tokenizer."""
    random = job.spec.training.model.random
    if random is not None:
        return random.vocabulary_size
    size = config.get("vocab_size")
    return size if isinstance(size, int) else None


def _drawn(job: RLJob, in_tokenizer: int, in_model: int | None) -> int:
    """How many tokens the policy may draw; `in_model`: how many it is known to have."""
    random = job.spec.training.model.random
    return random.tokens(in_tokenizer) if random is not None else in_model or in_tokenizer


def _divided(job: RLJob, config: dict[str, Any]) -> dict[str, Any]:
    """What config.json says, or will say, of the model that ranks can have parts of."""
    random = job.spec.training.model.random
    if random is None:
        return config
    return {
        "num_attention_heads": random.attention_heads,
        "num_key_value_heads": random.key_value_heads,
        "intermediate_size": random.intermediate_size,
        "num_experts": random.experts.count if random.experts is not None else 0,
    }


def _check_length(job: RLJob, config: dict[str, Any]) -> Iterator[Problem]:
    longest = job.spec.training.longest_sample_tokens
    limit = config.get("max_position_embeddings")
    if isinstance(limit, int) and longest > limit:
        yield Problem(
            (*_TRAINING, "rollout", "maxResponseTokens"),
            f"data.maxPromptTokens + rollout.maxResponseTokens is {longest}, above the model's "
            f"max_position_embeddings ({limit} in its config.json)",
        )


@contextmanager
def _unchanged_search_path() -> Iterator[None]:
    """Modules beside the manifest must not shadow those that this process imports later."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before


def _clause(error: Exception | str) -> str:
    """An error's message, or its text, as the end of a sentence."""
    return str(error).rstrip(".")
