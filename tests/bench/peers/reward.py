"""A reward that differs between responses and costs nothing: the same for every contender."""

import zlib
from typing import Any


def verl_score(data_source: str, solution_str: str, ground_truth: str, **_: Any) -> float:
    """As verl calls it."""
    return _score(solution_str)


def ours(given: Any) -> float:
    """As ours is called, with a `RewardInput`."""
    return _score(given.response)


def trl(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
    """As TRL calls it, with the responses of a step, each one message of a chat."""
    return [_score(message["content"]) for [message] in completions]


def _score(text: str) -> float:
    return zlib.crc32(text[:64].encode()) % 1000 / 1000
