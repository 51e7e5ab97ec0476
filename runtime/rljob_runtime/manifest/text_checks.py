"""Model, tokenizer, data, evaluation and teacher of a job, which must fit one another.

Guarantees: each is checked even when another is not there or wrong, as far as it does not need it; a folder
that cannot be used is told once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.prompts import Epoch, check_data
from rljob_runtime.data.tokenizer import TextTokenizer, build_tokenizer, check_vocabulary
from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.manifest.adapters import check_adapter, doubtful_rank
from rljob_runtime.manifest.attention_limits import unequal_heads
from rljob_runtime.manifest.cache_size import check_cache_size
from rljob_runtime.manifest.data_problem import data_doubt, data_problem
from rljob_runtime.manifest.engine_split import check_engine_split
from rljob_runtime.manifest.evaluation_check import check_evaluation
from rljob_runtime.manifest.head_width import check_head_width
from rljob_runtime.manifest.teacher_check import check_teacher
from rljob_runtime.parallel.rank_layout import unfit
from rljob_runtime.rewards.calls import calls_of
from rljob_runtime.site.large_imports import large_imports
from rljob_runtime.weights.adapter import adapted_layers
from rljob_runtime.weights.contents import tensor_formats, tensor_shapes
from rljob_runtime.weights.model_files import examine
from rljob_runtime.weights.read_alike import check_read_alike
from rljob_runtime.weights.stored_formats import doubtful_format
from rljob_runtime.weights.torch_engine_limits import check_attention, check_reloading
from rljob_runtime.weights.vllm_engine_limits import check_updates

_TRAINING = ("spec", "training")
_TENSOR_PARALLEL = (*_TRAINING, "parallel", "tensorParallel")
_MODEL_PATH = (*_TRAINING, "model", "path")
_RECOMPUTED = "activationCheckpointing"
_NEED_ANSWERS = ("rljob_runtime.rewards.math:math_answer",)
"""Built-in rewards that compare with the prompt's answer."""


@dataclass(frozen=True)
class Texts:
    """What was found of a job's texts."""

    problems: list[Problem]
    doubts: list[Problem]
    """What may be wrong."""
    tokenizer: TextTokenizer | None
    """None where it cannot be had."""
    epoch: Epoch | None
    """Of the data, as far as it is known."""
    data_right: bool
    """Whether nothing is wrong with the data."""
    right_sets: frozenset[int]
    """Indices of the sets of training.evaluation whose prompts can be used."""


def check_texts(job: RLJob, folder: Path) -> Texts:
    """`folder` is the manifest's."""
    training = job.spec.training
    config, problems = _check_model(job, folder)
    doubts = [] if problems else [*doubtful_rank(job, folder), *_doubtful_formats(job, folder)]
    in_model = _vocabulary_size(job, config)
    tokenizer, wrong = _check_tokenizer(job, folder, in_model)
    # A model's folder that cannot be used is told once, whatever its tokenizer is.
    if wrong is not None and wrong.path not in [each.path for each in problems]:
        problems.append(wrong)
    problems += check_teacher(job, folder, tokenizer, _drawn(job, tokenizer, in_model))
    needed = any(call.function in _NEED_ANSWERS for call in calls_of(training.reward))
    checked = check_data(training.data, tokenizer, training.seed, folder, answers_needed=needed)
    # Sources of one file, with the fields of training.data, lack the same ones.
    problems += dict.fromkeys(data_problem(training.data, error) for error in checked.errors)
    doubts += (data_doubt(training.data, doubt) for doubt in checked.doubts)
    of_sets, of_set_doubts, right_sets = check_evaluation(training, tokenizer, folder, needed, checked.errors)
    return Texts(
        problems=[*problems, *of_sets],
        doubts=[*doubts, *of_set_doubts],
        tokenizer=tokenizer,
        epoch=checked.epoch,
        data_right=not checked.errors,
        right_sets=right_sets,
    )


def _check_model(job: RLJob, folder: Path) -> tuple[dict[str, Any], list[Problem]]:
    """The config.json of the model's folder, as far as it can be read, and what is wrong with the folder or
    does not fit it. Empty for a random model."""
    training = job.spec.training
    config: dict[str, Any] = {}
    problems: list[Problem] = []
    if training.model.path is not None:
        config, wrong = examine(folder / training.model.path)
        problems += (Problem(_MODEL_PATH, str(error).rstrip(".")) for error in wrong)
    # An adapter is looked at in the weights.
    if not problems:
        adapter = list(check_adapter(job, folder, config))
        problems += adapter
        problems += _check_computation(job, folder, config, adapter_right=not adapter)
    problems += _check_sharing(job, config)
    problems += _check_length(job, config)
    if (why := unfit(training.parallel.tensor_parallel, _divided(job, config))) is not None:
        problems.append(Problem(_TENSOR_PARALLEL, why))
    problems += check_engine_split(job, _divided(job, config))
    for found in (check_cache_size(job, config), check_head_width(job, config)):
        if found is not None:
            problems.append(found)
    return config, problems


def _check_computation(
    job: RLJob, folder: Path, config: dict[str, Any], adapter_right: bool
) -> Iterator[Problem]:
    """What of the model in a folder the trainer does not compute, does not take, cannot adapt or cannot
    split. `adapter_right`: whether nothing is known to be wrong with the job's adapter."""
    training = job.spec.training
    if training.model.path is None:
        return
    # They take seconds to import, which only a job with a model's folder needs to spend.
    with large_imports():
        from rljob_runtime.manifest.loaded_model import (
            check_adapted,
            check_loading,
            check_recomputing,
            layers_to_compile,
        )
        from rljob_runtime.manifest.model_trial import check_computation
        from rljob_runtime.manifest.tensor_plan import check_plan

    model = folder / training.model.path
    path: tuple[str, ...] = _MODEL_PATH
    try:
        check_computation(model, training.longest_sample_tokens)
        loaded = check_loading(model)
        tied = loaded.config.get_text_config().tie_word_embeddings
        check_read_alike(model, tied, vllm=training.rollout.engine.vllm is not None)
        if training.rollout.engine.vllm is not None and training.adapter is None:
            check_updates(model, loaded.config)
        if training.model.recomputed != "none":
            name = "gradientCheckpointing" if training.model.gradient_checkpointing else _RECOMPUTED
            path = (*_TRAINING, "model", name)
            check_recomputing(loaded, name)
        if training.compute.compile:
            path = (*_TRAINING, "compute", "compile")
            layers_to_compile(loaded)
        if training.rollout.engine.torch is not None:
            path = (*_TRAINING, "rollout", "engine", "torch")
            check_attention(model, loaded, training.longest_sample_tokens)
            check_reloading(model, loaded, tensor_shapes(model))
        if training.adapter is not None and adapter_right:
            path = (*_TRAINING, "adapter")
            check_adapted(loaded, adapted_layers(tensor_shapes(model), training.adapter))
        path, ranks = _TENSOR_PARALLEL, training.parallel.tensor_parallel
        # Sizes that do not divide are told by themselves.
        if ranks > 1 and unfit(ranks, config) is None:
            check_plan(model, ranks)
    except UnsupportedModel as error:
        yield Problem(path, str(error).rstrip("."))


def _doubtful_formats(job: RLJob, folder: Path) -> Iterator[Problem]:
    path = job.spec.training.model.path
    if path is not None and (why := doubtful_format(tensor_formats(folder / path))) is not None:
        yield Problem(_MODEL_PATH, f"{folder / path}: {why}")


def _check_sharing(job: RLJob, config: dict[str, Any]) -> Iterator[Problem]:
    asked, tensor = job.spec.context_parallel, job.spec.training.parallel.tensor_parallel
    largest = asked.largest_degree(job.spec.data_ranks)
    heads = _divided(job, config).get("num_attention_heads")
    if asked.attention != "ulysses" or not isinstance(heads, int):
        return
    # Heads that tensor groups do not divide are told by themselves.
    if heads % tensor == 0 and (why := unequal_heads(heads, largest, tensor)) is not None:
        yield Problem((*_TRAINING, "parallel", "contextParallel", "attention"), why)


def _check_tokenizer(
    job: RLJob, folder: Path, in_model: int | None
) -> tuple[TextTokenizer | None, Problem | None]:
    """The job's tokenizer, and what is wrong with it. `in_model`: how many tokens the model knows."""
    training = job.spec.training
    model_folder = folder / training.model.path if training.model.path is not None else None
    tokenizer = None
    try:
        tokenizer = build_tokenizer(training.tokenizer, folder, model_folder)
        if in_model is not None:
            check_vocabulary(tokenizer, in_model)
    except DataError as error:
        place = (*_TRAINING, "tokenizer") if training.tokenizer is not None else _MODEL_PATH
        return tokenizer, Problem(place, str(error).rstrip("."))
    return tokenizer, None


def _vocabulary_size(job: RLJob, config: dict[str, Any]) -> int | None:
    """Tokens that the model knows; None where it is made to fit the tokenizer, and where its folder cannot be
    read: that is told, and until it is mended tokens are compared with the tokenizer's alone."""
    random = job.spec.training.model.random
    if random is not None:
        return random.vocabulary_size
    size = config.get("vocab_size")
    return size if isinstance(size, int) else None


def _drawn(job: RLJob, tokenizer: TextTokenizer | None, in_model: int | None) -> int | None:
    """How many tokens the policy may draw, None where that is not known; `in_model`: how many it is known to
    have."""
    random = job.spec.training.model.random
    if tokenizer is None:
        return in_model
    return (
        random.tokens(tokenizer.vocabulary_size)
        if random is not None
        else in_model or tokenizer.vocabulary_size
    )


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
            f"max_position_embeddings ({limit} in its config.json, or by default)",
        )
