"""From the instants at which a contender's steps ended to its figures. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_STEP = re.compile(r"\bstep:(\d+) - (.*)")
"""A line of verl's console logger, with whatever Ray puts before it."""
_VERL_TOKENS = "response_length/mean"
_TRL_STEP = re.compile(r"peers step \d+: (\S+) response tokens$")


@dataclass(frozen=True)
class Ended:
    """A step that has ended."""

    time: float
    """In seconds, of any clock."""
    tokens: float
    """Response tokens that it trained."""


def steady_rate(steps: Sequence[Ended], skipped: int, fewest: int) -> float | None:
    """Response tokens trained per second between the end of step `skipped` and the last one's, in tokens/s.
    None where fewer than `fewest` steps lie between: the start would be most of what is measured."""
    counted = steps[skipped:]
    if len(counted) < max(fewest, 1) or skipped < 1:
        return None
    return sum(step.tokens for step in counted) / (steps[-1].time - steps[skipped - 1].time)


def verl_step(line: str, time: float, samples: int) -> Ended | None:
    """The step that a line of verl's output, read at `time`, tells of. `samples`: responses in a step.
    A line without the length of responses, such as one of an evaluation, tells of none."""
    numbers = verl_numbers(line)
    return Ended(time, float(numbers[_VERL_TOKENS]) * samples) if _VERL_TOKENS in numbers else None


def trl_line(step: int, tokens: float) -> str:
    """What is said inside TRL when a step has ended that trained so many response tokens."""
    return f"peers step {step}: {tokens!r} response tokens"


def trl_step(line: str, time: float) -> Ended | None:
    """The step that a line of TRL's output, read at `time`, tells of as `trl_line` does."""
    found = _TRL_STEP.search(line)
    return Ended(time, float(found[1])) if found else None


def verl_numbers(line: str) -> dict[str, str]:
    """What a line of verl's console logger tells of a step, by name; nothing for any other line."""
    found = _STEP.search(line)
    # No number contains the separator: a negative exponent has no spaces around its sign.
    parts = found.group(2).split(" - ") if found is not None else []
    return {name: number for name, _, number in (part.rpartition(":") for part in parts) if name}
