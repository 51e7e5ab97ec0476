"""What a manifest refers to: the model's folder, tokenizer, data, reward and the folder of checkpoints,
checked before a job starts.

Guarantees: nothing is downloaded and no weights are loaded; each thing is checked even when another is
wrong, as far as it does not need it; a few seconds at most. Reward functions are tried on the first rows
of the data in a process of their own, and imported in this one first, unless a host runs them as another
user; losses and advantages of the job's own are imported and tried in this one.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rljob_api import RLJob
from rljob_api.data import Reward
from rljob_api.errors import Problem
from rljob_api.model import RandomModel
from rljob_runtime.data.errors import not_expanded
from rljob_runtime.job_errors import OwnFunctionFailed
from rljob_runtime.manifest.ascend_formats import check_format
from rljob_runtime.manifest.load import Finding, Manifest
from rljob_runtime.manifest.logger_packages import check_loggers
from rljob_runtime.manifest.no_effect import without_effect
from rljob_runtime.manifest.object_meta import metadata_doubts
from rljob_runtime.manifest.traps import traps
from rljob_runtime.own_functions import ArgumentError, FunctionLoadError
from rljob_runtime.samples import encode
from rljob_runtime.weights.model_files import folder_parameters

if TYPE_CHECKING:
    from rljob_runtime.data.fingerprint import DataFingerprint
    from rljob_runtime.data.prompts import Epoch
    from rljob_runtime.rewards.calls import FunctionCall
    from rljob_runtime.rewards.load import Refusal

_TRAINING = ("spec", "training")


def check(manifest: Manifest) -> tuple[list[Finding], list[Finding]]:
    """Everything that is wrong with what the manifest refers to, and what may be."""
    errors, warnings = check_job(manifest.job, manifest.folder)
    warnings += metadata_doubts(manifest.source.value.get("metadata", {}))
    return [manifest.find(each) for each in errors], [manifest.find(each) for each in warnings]


def check_job(
    job: RLJob, folder: Path, host: Path | None = None, quoting: bool = True
) -> tuple[list[Problem], list[Problem]]:
    """Everything that is wrong with what a job refers to, and what may be wrong; relative paths are relative
    to `folder`. `host`: the socket of the host of reward workers, which alone imports the job's own code;
    raises `WorkerStartError` where it starts none. `quoting`: what the job's reward raises when it is tried
    is told with its message, which may quote the data."""
    from rljob_runtime.manifest.reward_trial import try_job_reward
    from rljob_runtime.manifest.text_checks import check_texts

    of_reward = list(_check_reward(job, folder, host))
    texts = check_texts(job, folder)
    format_problem = check_format(job)
    errors = [
        *([] if format_problem is None else [format_problem]),
        *of_reward,
        *_check_own_functions(job, folder),
        *check_loggers(job.spec.training.loggers),
        *_check_checkpoints(job, folder),
        *texts.problems,
        *_check_forced_lengths(job, folder, texts.epoch),
    ]
    tried = try_job_reward(job, folder, host, texts, quoting) if not of_reward else []
    errors += [problem for problem, certain in tried if certain]
    return errors, [
        *(problem for problem, certain in tried if not certain),
        *texts.doubts,
        *traps(job, texts.epoch.rows if texts.epoch else None),
        *without_effect(job),
    ]


def fingerprint(job: RLJob, folder: Path) -> "DataFingerprint | None":
    """What identifies the job's prompts; None where they cannot be read now, or not all in seconds."""
    from rljob_runtime.data.prompts import generated_fingerprint
    from rljob_runtime.manifest.text_checks import check_texts

    texts, training = check_texts(job, folder), job.spec.training
    if texts.epoch is not None:
        return texts.epoch.fingerprint
    if texts.tokenizer is None or not texts.data_right:
        return None
    return generated_fingerprint(training.data, texts.tokenizer, training.seed, folder)


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


def _check_reward(job: RLJob, folder: Path, host: Path | None) -> Iterator[Problem]:
    from rljob_runtime.rewards.calls import calls_of

    reward = job.spec.training.reward
    if too_large := list(_too_large(reward)):
        # No worker could be told of them.
        yield from too_large
        return
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


def _too_large(reward: Reward) -> Iterator[Problem]:
    """Arguments with integers that cannot be sent to the processes of the functions."""
    several = ((("functions", index), each.arguments) for index, each in enumerate(reward.functions or ()))
    for place, arguments in (((), reward.arguments), *several):
        for name, value in arguments.items():
            try:
                encode(value)
            except OverflowError:
                yield Problem(
                    (*_TRAINING, "reward", *place, "arguments", name),
                    "has an integer of more than 64 bits, and a reward gets none: quote it",
                )


def _refusals(calls: "Sequence[FunctionCall]", folder: Path) -> "Iterator[Refusal]":
    for index, call in enumerate(calls):
        yield from _refusals_of(index, call, folder)


def _refusals_of(index: int, call: "FunctionCall", folder: Path) -> "Iterator[Refusal]":
    """Every argument of the job's function `index` that it does not take, or else why it cannot be used."""
    from rljob_runtime.rewards.load import load_reward, refusal_of

    arguments = dict(call.arguments)
    while True:
        with _unchanged_search_path():
            try:
                load_reward(call.function, arguments, [folder])
                return
            except FunctionLoadError as error:
                refusal = refusal_of(error, index)
        if refusal.argument is None:
            # One that is missing may be what was meant by one that it does not take.
            if len(arguments) == len(call.arguments):
                yield refusal
            return
        yield refusal
        del arguments[refusal.argument]


def _hosted_refusals(calls: "Sequence[FunctionCall]", folder: Path, host: Path) -> "Iterator[Refusal]":
    from rljob_runtime.rewards.trial import hosted_refusal

    first = 0
    # A worker that cannot have one function looks at none of those after it.
    while first < len(calls) and (found := hosted_refusal(calls[first:], [folder], host)) is not None:
        yield msgspec.structs.replace(found, call=first + found.call)
        first += found.call + 1


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


def _check_checkpoints(job: RLJob, folder: Path) -> Iterator[Problem]:
    """Whether there is, or can be, the folder that the job names for its checkpoints."""
    named = job.spec.training.checkpoint.path
    if named is None:
        return
    place = (*_TRAINING, "checkpoint", "path")
    path = folder / named
    nearest = next((each for each in (path, *path.parents) if os.path.exists(each)), path)
    if os.path.exists(nearest) and not os.path.isdir(nearest):
        yield Problem(place, f"{nearest} is a file; name a folder")
    # One that is there is meant, whatever its name.
    elif nearest != path and (advice := not_expanded(Path(named))):
        yield Problem(place, f"no folder {named}{advice}")


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
        forced_lengths(training, folder, groups, data)
    except LengthTraceError as error:
        yield Problem((*_TRAINING, "rollout", "forcedLengths"), _clause(error))


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
