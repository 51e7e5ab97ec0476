"""The reward of the copy task: the same for every contender, of the same text."""

from typing import Any

OVERRUN = 0.02
"""What each letter after the wanted ones costs."""


def verl_score(data_source: str, solution_str: str, ground_truth: str, **_: Any) -> float:
    """As verl calls it."""
    return score(ground_truth, solution_str)


def ours(given: Any) -> float:
    """As ours is called, with a `RewardInput`."""
    return score(given.answer, given.response)


def score(wanted: str, response: str) -> float:
    """The part of the places that match, less a little for each letter too many."""
    matches = sum(letter == got for letter, got in zip(wanted, response, strict=False))
    return matches / len(wanted) - OVERRUN * max(0, len(response) - len(wanted))
