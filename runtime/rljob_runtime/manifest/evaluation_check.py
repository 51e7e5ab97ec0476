"""The sets of training.evaluation, looked at before a job starts.

Guarantees: takes a few seconds at most, and fetches nothing: of what is large the first rows alone are looked
at. When the job begins, all of it is, before anything is started.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path as File

from rljob_api.data import HeldOutData
from rljob_api.errors import Path, Problem
from rljob_api.training import Training
from rljob_runtime.data.doubts import DataDoubt
from rljob_runtime.data.errors import AnswersMissing, DataError, PromptMissing, RewardFieldMissing
from rljob_runtime.data.held_out import trained_prompts
from rljob_runtime.data.prompts import check_data, some_texts
from rljob_runtime.data.tokenizer import FolderTokenizer, TextTokenizer

SETS = ("spec", "training", "evaluation", "sets")
"""Where the sets are, each at its index."""


def check_evaluation(
    training: Training,
    tokenizer: TextTokenizer | None,
    folder: File,
    answers_needed: bool,
    of_data: Sequence[DataError],
) -> tuple[list[Problem], list[Problem], frozenset[int]]:
    """What is wrong with the sets of prompts, what may be, and the indices of those whose prompts can be
    used; paths are relative to `folder`. `tokenizer`: None where there is none. `of_data`: what is wrong with
    the data that are trained, which is not told again."""
    problems: list[Problem] = []
    doubts: list[Problem] = []
    usable = set[int]()
    sets = training.evaluation.sets if training.evaluation is not None else []
    for index, (each, data) in enumerate(zip(sets, training.held_out, strict=True)):
        checked = check_data(data, tokenizer, training.seed + 1 + index, folder, answers_needed)
        if not checked.errors:
            usable.add(index)
        doubts += (_doubt(_path(index), each.data, doubt) for doubt in checked.doubts)
        problems += [
            _problem(_path(index), each.data, error)
            for error in checked.errors
            if not any(_taken_over(each.data, error, other) for other in of_data)
        ]
    letters = tokenizer.letters if tokenizer is not None else FolderTokenizer.letters
    for index, why in _trained(training, letters, folder).items():
        problems.append(Problem((*_path(index), sets[index].data.yaml_choice), why))
    return problems, doubts, frozenset(usable)


def _taken_over(data: HeldOutData, error: DataError, of_data: DataError) -> bool:
    """Whether a set lacks a field that training.data names, whose own rows lack it too."""
    if isinstance(error, RewardFieldMissing) and isinstance(of_data, RewardFieldMissing):
        return data.reward_fields is None and error.index == of_data.index
    own = data.prompt_field if isinstance(error, PromptMissing) else data.answer_field
    return isinstance(error, PromptMissing | AnswersMissing) and type(error) is type(of_data) and own is None


def _trained(training: Training, letters: str, folder: File) -> dict[int, str]:
    """What is wrong with each set that has a prompt which is trained, by its index. What cannot be read is
    left out: that is told where it is checked."""
    compared = {}
    for index, data in enumerate(training.held_out):
        if data.generated is None:
            with suppress(DataError):
                compared[index] = list(some_texts(data, letters, training.seed + 1 + index, folder))
    found: dict[int, str] = {}
    if compared:
        trained = some_texts(training.data, letters, training.seed, folder)
        with suppress(DataError):
            found = trained_prompts(list(compared.values()), trained)
    indices = list(compared)
    return {indices[place]: why for place, why in found.items()}


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


def _doubt(path: Path, data: HeldOutData, doubt: DataDoubt) -> Problem:
    """The doubt as a warning about the set, placed as errors are."""
    if doubt.field is None:
        return Problem((*path, data.yaml_choice), doubt.words)
    # The one field that a doubt can be about.
    return Problem((*path, doubt.field) if data.answer_field is not None else path, doubt.words)


def _path(index: int) -> Path:
    return *SETS, index, "data"
