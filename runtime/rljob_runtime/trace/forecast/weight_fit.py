"""How long versions of the weights take from the trainer to the engines, by the events of a run.

Guarantees: of each version that was published and loaded, two times: for which the trainer stood still, and
from then until an engine paused to load it. The first version after each start warms up (memory is taken,
connections are made) and is left out where there are others; one that no engine paused for counts nowhere.
Pure.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from statistics import median


@dataclass(frozen=True)
class WeightFit:
    """Medians over versions, in seconds."""

    publish: float
    """From a step's end on the trainer stands still."""
    delivery: float
    """From then until an engine pauses to load the version."""
    versions: int
    """That they rest on."""


def fit_weights(
    published: Sequence[tuple[float, float]], pauses: Collection[float], starts: Collection[float]
) -> WeightFit | None:
    """`published`: begin and seconds of each publishing; `pauses`: when engines paused for a version;
    `starts`: when training began, and began again. All in seconds since the epoch. None where no version was
    seen on its whole way."""
    ordered, times = sorted(published), sorted(pauses)
    firsts = {0, *(bisect_left(ordered, (start, 0.0)) for start in starts)}
    found: list[tuple[bool, float, float]] = []
    for place, ((begin, seconds), (next_begin, _)) in enumerate(pairwise([*ordered, (inf, 0.0)])):
        # One version is under way at a time: pauses up to the next publishing are for this one.
        pause = bisect_left(times, begin + seconds)
        if pause < len(times) and times[pause] < next_begin:
            found.append((place in firsts, seconds, times[pause] - begin - seconds))
    used = [each for each in found if not each[0]] or found
    if not used:
        return None
    publish, delivery = (median(each[part] for each in used) for part in (1, 2))
    return WeightFit(publish, delivery, len(used))
