"""Which field of training.data an error about its rows points at. Pure."""

from rljob_api.data import Data
from rljob_api.errors import Problem
from rljob_runtime.data.errors import AnswersMissing, DataError, RewardFieldMissing


def data_problem(data: Data, error: DataError) -> Problem:
    """The error as one of the manifest's: at the source that it is about, or at the field of training.data
    that this source takes."""
    everywhere: tuple[str | int, ...] = ("spec", "training", "data")
    several = data.sources is not None and error.source is not None
    source = data.sources[error.source] if data.sources and error.source is not None else data
    here = (*everywhere, "sources", error.source or 0) if several else everywhere
    if isinstance(error, AnswersMissing):
        place = everywhere if source.answer_field is None else here
        return Problem((*place, "answerField"), error.fault, error.near)
    if isinstance(error, RewardFieldMissing):
        place = everywhere if source.reward_fields is None else here
        return Problem((*place, "rewardFields", error.index), error.fault, error.near)
    return Problem((*here, source.yaml_choice), str(error).rstrip("."))
