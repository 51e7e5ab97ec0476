"""Is a reward too slow for its job? Pure: from how long it took for a response when it was tried."""

import math
from collections.abc import Sequence
from statistics import median_low

_SCORING_SECONDS = 30.0
"""Longer than this the responses of a step should not keep the reward workers busy: with the engines they run
on, whole steps take about as long."""
_MOST_WORKERS = 256
"""Of `reward.workers`."""
_NEAR = 0.2
"""A made-up response that takes this share of the time limit leaves little room for longer ones."""


def usual_seconds(measured: Sequence[float]) -> float | None:
    """Seconds that a response usually takes, from what those of a trial took in their order; None where that
    cannot be told."""
    # The first call may load a model, or what is imported late.
    later = measured[1:]
    return median_low(later) if later else None


def slow_step(seconds: float, samples: int, workers: int) -> str | None:
    """What to do about a reward that takes `seconds` a response, in a job that trains `samples` responses in
    a step and has so many reward workers; None where that is fast enough."""
    total = seconds * samples / min(workers, samples)
    if total <= _SCORING_SECONDS:
        return None
    enough = math.ceil(seconds * samples / _SCORING_SECONDS)
    most = min(enough, _MOST_WORKERS, samples)
    said = (
        f"the reward took {_in_words(seconds)} for a response when it was tried: with {workers} worker"
        f"{'' if workers == 1 else 's'} the {samples:,} responses of a step take {_in_words(total)} to score"
    )
    if most <= workers:
        return f"{said}, and more workers would not change that: make the function faster"
    least = _in_words(seconds * samples / most)
    return f"{said}. Set it to {most} for {least}; each needs a CPU, unless it waits for a server"


def near_limit(seconds: float, limit: float) -> str | None:
    """What to do about a time limit of `limit` seconds for a reward that takes `seconds` a response; None
    where there is room."""
    if seconds < _NEAR * limit:
        return None
    return (
        f"is {limit:g} s, and the reward took {_in_words(seconds)} for a made-up response when it was tried: "
        f"a response that takes longer than the limit has no reward. Set it to {math.ceil(10 * seconds)} or "
        "more, or make the function faster"
    )


def _in_words(seconds: float) -> str:
    """`0.25 s`, `51 s`, `4 min`."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
