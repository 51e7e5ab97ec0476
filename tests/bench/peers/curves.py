"""From the steps of a contender to its learning curve's figures. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.peers.rates import verl_numbers

WINDOW = 5
"""Steps of which the mean reward counts: a single one is noisy."""
_REWARD = "critic/score/mean"


@dataclass(frozen=True)
class Point:
    """A step that is trained."""

    time: float
    """When it ended, in seconds since the contender's command was started."""
    reward: float
    """Mean of the responses that it trained."""


@dataclass(frozen=True)
class Reached:
    """When a reward is reached."""

    steps: int
    """Trained by then."""
    seconds: float
    """From the end of the first step."""
    from_start: float
    """Seconds from the start of the command."""


def smoothed(points: Sequence[Point]) -> list[float]:
    """For each step the mean reward of it and of those before, `WINDOW` steps at most."""
    rewards = [point.reward for point in points]
    windows = [rewards[max(0, end - WINDOW) : end] for end in range(1, len(rewards) + 1)]
    return [sum(window) / len(window) for window in windows]


def reached(points: Sequence[Point], level: float) -> Reached | None:
    """The first step at which the mean reward of the last `WINDOW` steps is `level` or more; None where there
    is none, which is so where there are fewer steps."""
    means = smoothed(points)
    for number in range(WINDOW, len(points) + 1):
        if means[number - 1] >= level:
            time = points[number - 1].time
            return Reached(number, time - points[0].time, time)
    return None


def distance(one: Sequence[Point], other: Sequence[Point]) -> float | None:
    """The largest difference of two smoothed curves after the same number of samples, over the steps that
    both have; None where those are fewer than `WINDOW`."""
    # The means of the first steps are of too few, and would be the largest difference by chance.
    pairs = list(zip(smoothed(one), smoothed(other), strict=False))[WINDOW - 1 :]
    return max((abs(mine - yours) for mine, yours in pairs), default=None)


def verl_point(line: str, time: float) -> Point | None:
    """The step that a line of verl's output, read at `time`, tells of; None for a line without the reward of
    a step that is trained."""
    numbers = verl_numbers(line)
    return Point(time, float(numbers[_REWARD])) if _REWARD in numbers else None
