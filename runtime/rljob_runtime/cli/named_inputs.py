"""The model and the data that the answers to `rljob new` name, as far as they are on this machine.

Guarantees: nothing is fetched and no weights are loaded; what is not there, or lacks a field that is named,
is told and never an error: it may be put there later, or be on another machine.
"""

from dataclasses import dataclass
from pathlib import Path

from rljob_runtime.authoring.answers import Answers
from rljob_runtime.authoring.data_files import kind_of
from rljob_runtime.authoring.new_job import COUNTED
from rljob_runtime.data.rows import Source


@dataclass(frozen=True)
class NamedInputs:
    """What is known of them."""

    positions: int | None = None
    """Most tokens that the model takes, prompt and response together; None where that is not known."""
    prompts: int | None = None
    """Rows of the data, counted up to `COUNTED`; None where that is not known."""
    warnings: tuple[str, ...] = ()
    """What to look at, each a clause."""


def look_at(answers: Answers, base: Path) -> NamedInputs:
    """What is there; relative paths are relative to `base`, where the manifest will be."""
    if answers.model is None or answers.data is None:
        return NamedInputs()
    positions, of_model = _model(answers.model, base)
    prompts, of_data = _data(answers, answers.data, base)
    # In a cluster they are on its volume, and what is here says nothing.
    warnings = () if answers.where == "cluster" else (*of_model, *of_data)
    return NamedInputs(positions, prompts, warnings)


def data_fields(answers: Answers, base: Path) -> list[str]:
    """The fields of the data; none where it is not here, or cannot be read."""
    from rljob_runtime.data.errors import DataError, PromptMissing

    # In a cluster it is on its volume, and what is here says nothing.
    if answers.data is None or answers.where == "cluster":
        return []
    try:
        source = _opened(answers, answers.data, base)
        if source is None or not len(source):
            return []
        source.row(0)
        return list(source.fields())
    except PromptMissing as error:
        return error.there
    except DataError:
        # `look_at` tells of it.
        return []


def _model(model: str, base: Path) -> tuple[int | None, list[str]]:
    from rljob_runtime.weights.model_files import ModelFolderError, read_config, text_part

    try:
        found = text_part(read_config(base / model)).get("max_position_embeddings")
    except ModelFolderError as error:
        return None, [f"--model {model}: {str(error).rstrip('.')}"]
    return found if isinstance(found, int) and found > 1 else None, []


def _data(answers: Answers, data: str, base: Path) -> tuple[int | None, list[str]]:
    from rljob_runtime.data.errors import DataError

    try:
        source = _opened(answers, data, base)
        if source is None:
            return None, []
        if len(source):
            # A field that holds no prompt is found in a row, of some formats.
            source.row(0)
        return len(source), _missing(answers, data, source)
    except DataError as error:
        return None, [f"--data {data}: {str(error).rstrip('.')}"]


def _opened(answers: Answers, data: str, base: Path) -> Source | None:
    """The first rows; None of a data set that would have to be fetched. Raises `DataError`."""
    from rljob_api.data import PromptData
    from rljob_runtime.data.errors import DataError
    from rljob_runtime.data.sources import open_source

    if (kind := kind_of(data)) is not None:
        rows = {kind: {"path": data}}
    elif (base / data).is_dir():
        rows = {"huggingFace": {"name": data}}
    elif (base / data).is_file():
        raise DataError(
            "a file whose name ends in neither .jsonl nor .parquet, so that it is taken for the name of a "
            "data set on the hub: name it by its format"
        )
    elif data.startswith((".", "/")) or data.count("/") > 1:
        # A name on the hub is NAME or OWNER/NAME.
        raise DataError("there is no such folder, and no data set on the hub has such a name")
    else:
        return None
    names = {"promptField": answers.prompt_field, "answerField": answers.answer_field}
    fields = {field: name for field, name in names.items() if name is not None}
    return open_source(PromptData.model_validate({**rows, **fields}), base, seed=0, letters="", limit=COUNTED)


def _missing(answers: Answers, data: str, source: Source) -> list[str]:
    """Fields that are named beside the prompt's and that the first rows lack."""
    from rljob_runtime.data.errors import missing_name

    there = source.fields()
    named = [name for name in (answers.answer_field, *answers.reward_field_names) if name is not None]
    return [f"--data {data}: {missing_name('field', name, there)}" for name in named if name not in there]
