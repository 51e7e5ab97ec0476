"""The sets of training.evaluation, looked at before a job starts.

Guarantees: takes a few seconds at most, and fetches nothing: of what is large the first rows alone are looked
at. When the job begins, all of it is, before anything is started.
"""

from collections.abc import Iterator
from pathlib import Path as File

from rljob_api.data import HeldOutData
from rljob_api.errors import Path, Problem
from rljob_api.training import Training
from rljob_runtime.data.errors import AnswersMissing, DataError, RewardFieldMissing
from rljob_runtime.data.held_out import trained_prompts
from rljob_runtime.data.prompts import check_data, some_texts
from rljob_runtime.data.tokenizer import TextTokenizer


def check_evaluation(
    training: Training, tokenizer: TextTokenizer, folder: File, answers_needed: bool
) -> Iterator[Problem]:
    """What is wrong with the sets of prompts; paths are relative to `folder`. The data that are trained are
    checked already."""
    sets = training.evaluation.sets if training.evaluation is not None else []
    compared = []
    for index, (each, data) in enumerate(zip(sets, training.held_out, strict=True)):
        seed = training.seed + 1 + index
        try:
            check_data(data, tokenizer, seed, folder, answers_needed=answers_needed)
            if data.generated is None:
                compared.append((index, some_texts(data, tokenizer, seed, folder)))
        except DataError as error:
            yield _problem(_path(index), each.data, error)
    if compared:
        trained = some_texts(training.data, tokenizer, training.seed, folder)
        for place, why in trained_prompts([texts for _, texts in compared], trained).items():
            index = compared[place][0]
            yield Problem((*_path(index), sets[index].data.yaml_choice), why)


def _problem(path: Path, data: HeldOutData, error: DataError) -> Problem:
    """The error as one of the set's: at the field that it is about, or where the set takes that from
    training.data at the set itself, with what to do."""
    if isinstance(error, AnswersMissing):
        field, own, ways = "answerField", data.answer_field is not None, "set one of its own"
        inner: Path = (field,)
    elif isinstance(error, RewardFieldMissing):
        field, own, ways = "rewardFields", data.reward_fields is not None, "set its own, or [] for none"
        inner = (field, error.index)
    else:
        return Problem((*path, data.yaml_choice), str(error).rstrip("."))
    if own:
        return Problem((*path, *inner), error.fault, error.near)
    return Problem(path, f"{error.fault} (training.data.{field}, as the set has none: {ways})", error.near)


def _path(index: int) -> Path:
    return "spec", "training", "evaluation", "sets", index, "data"
