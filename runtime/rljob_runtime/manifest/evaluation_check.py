"""The sets of training.evaluation, looked at before a job starts.

Guarantees: takes a few seconds at most, and fetches nothing: of what is large the first rows alone are looked
at. When the job begins, all of it is, before anything is started.
"""

from collections.abc import Iterator
from pathlib import Path

from rljob_api.errors import Problem
from rljob_api.training import Training
from rljob_runtime.data.errors import AnswersMissing, DataError, RewardFieldMissing
from rljob_runtime.data.held_out import trained_prompts
from rljob_runtime.data.prompts import check_data, some_texts
from rljob_runtime.data.tokenizer import TextTokenizer


def check_evaluation(
    training: Training, tokenizer: TextTokenizer, folder: Path, answers_needed: bool
) -> Iterator[Problem]:
    """What is wrong with the sets of prompts; paths are relative to `folder`. The data that are trained are
    checked already."""
    sets = training.evaluation.sets if training.evaluation is not None else []
    compared = []
    for index, each in enumerate(sets):
        path, seed = _path(index), training.seed + 1 + index
        try:
            check_data(each.data, tokenizer, seed, folder, answers_needed=answers_needed)
            if each.data.generated is None:
                compared.append((index, some_texts(each.data, tokenizer, seed, folder)))
        except AnswersMissing as error:
            yield Problem((*path, "answerField"), error.fault, error.near)
        except RewardFieldMissing as error:
            yield Problem((*path, "rewardFields", error.index), error.fault, error.near)
        except DataError as error:
            yield Problem((*path, each.data.yaml_choice), str(error).rstrip("."))
    if compared:
        trained = some_texts(training.data, tokenizer, training.seed, folder)
        for place, why in trained_prompts([texts for _, texts in compared], trained).items():
            index = compared[place][0]
            yield Problem((*_path(index), sets[index].data.yaml_choice), why)


def _path(index: int) -> tuple[str | int, ...]:
    return "spec", "training", "evaluation", "sets", index, "data"
