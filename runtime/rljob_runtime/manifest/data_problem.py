"""Which field of training.data an error, or a doubt, about its rows points at. Pure."""

from rljob_api.data import Data, DataSource
from rljob_api.errors import Path, Problem
from rljob_runtime.data.doubts import DataDoubt
from rljob_runtime.data.errors import AnswersMissing, DataError, RewardFieldMissing

_DATA: Path = ("spec", "training", "data")


def data_problem(data: Data, error: DataError) -> Problem:
    """The error as one of the manifest's: at the source that it is about, or at the field of training.data
    that this source takes."""
    source, here = _source(data, error.source)
    if isinstance(error, AnswersMissing):
        place = _DATA if source.answer_field is None else here
        return Problem((*place, "answerField"), error.fault, error.near)
    if isinstance(error, RewardFieldMissing):
        place = _DATA if source.reward_fields is None else here
        return Problem((*place, "rewardFields", error.index), error.fault, error.near)
    return Problem((*here, source.yaml_choice), str(error).rstrip("."))


def data_doubt(data: Data, doubt: DataDoubt) -> Problem:
    """The doubt as a warning about the manifest, placed as errors are."""
    source, here = _source(data, doubt.source)
    if doubt.field is None:
        return Problem((*here, source.yaml_choice), doubt.words)
    # The one field that a doubt can be about.
    return Problem((*(_DATA if source.answer_field is None else here), doubt.field), doubt.words)


def _source(data: Data, index: int | None) -> tuple[Data | DataSource, Path]:
    """The source at an index, and its place; without one, all of the data."""
    if data.sources and index is not None:
        return data.sources[index], (*_DATA, "sources", index)
    return data, _DATA
