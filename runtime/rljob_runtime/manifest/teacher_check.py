"""The teacher that a job's trainer scores against its policy, before anything is loaded: it must know the
policy's tokens by the same numbers, and be able to score the job's longest sample. One that a server has is
asked when the job starts (`driver.open_teacher`)."""

from collections.abc import Iterator
from pathlib import Path

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_api.training import Training
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.tokenizer import TextTokenizer, folder_vocabulary
from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.parallel.rank_layout import unfit
from rljob_runtime.weights.model_files import examine
from rljob_runtime.weights.read_alike import check_read_alike

_TEACHER = ("spec", "training", "algorithm", "distillation", "teacher", "path")


def check_teacher(
    job: RLJob, folder: Path, tokenizer: TextTokenizer | None, vocabulary_size: int | None
) -> Iterator[Problem]:
    """What is wrong with a job's teacher. `folder` is the manifest's, `tokenizer` the policy's, and
    `vocabulary_size` how many tokens the policy may draw; None where that is not known, as its model or
    tokenizer is not there."""
    training = job.spec.training
    path = training.algorithm.teacher_folder
    if path is None:
        return
    teacher = folder / path
    config, wrong = examine(teacher)
    for fault in wrong:
        yield Problem(_TEACHER, str(fault).rstrip("."))
    if wrong:
        return
    # It takes seconds to import, which only a job with a teacher's folder needs to spend.
    from rljob_runtime.manifest.loaded_model import check_loading
    from rljob_runtime.manifest.model_trial import check_computation
    from rljob_runtime.manifest.tensor_plan import check_plan

    ranks = training.parallel.tensor_parallel
    try:
        check_computation(teacher, training.longest_sample_tokens)
        loaded = check_loading(teacher)
        check_read_alike(teacher, loaded.config.get_text_config().tie_word_embeddings, vllm=False)
        # Sizes that do not divide are told by themselves.
        if ranks > 1 and unfit(ranks, config) is None:
            check_plan(teacher, ranks)
    except UnsupportedModel as error:
        yield Problem(_TEACHER, str(error).rstrip("."))
        return
    try:
        theirs = folder_vocabulary(teacher)
    except DataError as error:
        yield Problem(_TEACHER, str(error).rstrip("."))
        return
    if training.model.path is not None and teacher.resolve() == (folder / training.model.path).resolve():
        yield Problem(
            _TEACHER,
            f"is model.path ({training.model.path}): the policy begins as that and would be held there, "
            "which algorithm.kl does",
        )
    if tokenizer is not None and (words := other_tokens(tokenizer.vocabulary(), theirs)) is not None:
        yield Problem(_TEACHER, words)
    yield from _sizes(training, config, vocabulary_size)


def other_tokens(policy: dict[str, int], teacher: dict[str, int]) -> str | None:
    """Why the teacher cannot score what the policy draws, from the numbers of their tokenizers' tokens; None
    where each of the policy's has the same number in the teacher's, which may have more."""
    differing = sorted((number, token) for token, number in policy.items() if teacher.get(token) != number)
    if not differing:
        return None
    number, token = differing[0]
    there = f"{teacher[token]} in the teacher's" if token in teacher else "not in the teacher's"
    return (
        f"has another tokenizer: of the {len(policy)} tokens of the policy's, {len(differing)} have another "
        f"number in the teacher's or none ({token!r} is {number}, and {there}). The teacher scores the "
        "policy's tokens by their numbers: take a teacher with the same tokenizer, as models of one family "
        "have"
    )


def _sizes(training: Training, config: dict[str, object], vocabulary_size: int | None) -> Iterator[Problem]:
    known = config.get("vocab_size")
    if isinstance(known, int) and vocabulary_size is not None and known < vocabulary_size:
        yield Problem(
            _TEACHER,
            f"has {known} tokens (vocab_size in its config.json, or by default), and the policy may draw "
            f"{vocabulary_size}: the teacher must have as many at least",
        )
    longest, limit = training.longest_sample_tokens, config.get("max_position_embeddings")
    if isinstance(limit, int) and longest > limit:
        yield Problem(
            _TEACHER,
            f"takes samples of {limit} tokens at most (max_position_embeddings in its config.json, or by "
            f"default), and data.maxPromptTokens + rollout.maxResponseTokens is {longest}",
        )
    if (why := unfit(training.parallel.tensor_parallel, config)) is not None:
        yield Problem(_TEACHER, f"cannot be split as the policy is: {why}")
