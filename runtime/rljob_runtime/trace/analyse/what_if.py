"""The two questions of the long tail: what ending a step before its last responses would have saved, and what
a lower limit of tokens would have.

Pure. Both answers are upper bounds, as the engines are taken to run as fast as they did: more requests at a
time would have slowed them down. The questions and the remedies are those of "Systematic analysis of the time
of multi-turn training in verl" (2025). Guarantees: memory is bounded by the number of limits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.trace.analyse.requests import Request

DONE = 0.8
"""Share of the responses that the sentence on the tail speaks of."""
EXTRA = 0.2
"""Groups that over-sampling is taken to begin beyond those that a step needs, as their part."""
MOST_CUT = 0.05
"""Share of responses that a limit may cut where it is proposed."""
_PER_DOUBLING = 4
LIMITS = tuple(round(16 * 2 ** (number / _PER_DOUBLING)) for number in range(17 * _PER_DOUBLING + 1))
"""Limits that are tried, in tokens: 16 to two million, each a fifth above the one before."""

_Numbers = NDArray[np.float64]


@dataclass
class TailSums:
    """Sums over steps, in seconds of the time in which a step's responses were generated."""

    steps: int = 0
    responses: int = 0
    seconds: float = 0.0
    """From the begin of a step's first response to the end of its last."""
    done: float = 0.0
    """Until `DONE` of its responses had ended."""
    over_sampled: float = 0.0
    """Until as many of its groups were complete as a step needs, had `EXTRA` more been begun."""
    longest: int = 0
    """Tokens of the longest response."""
    limited: _Numbers = field(default_factory=lambda: np.zeros(len(LIMITS)))
    """With each of `LIMITS`."""
    cut: _Numbers = field(default_factory=lambda: np.zeros(len(LIMITS)))
    """Responses that each of them would have cut."""

    def add_step(self, requests: Sequence[Request]) -> None:
        """Take the responses that ended in a step."""
        if not requests:
            return
        starts = np.array([each.start for each in requests])
        ends = starts + np.array([each.seconds for each in requests])
        lengths = np.array([max(each.length, 1) for each in requests], dtype=float)
        first, whole = starts.min(), float(ends.max() - starts.min())
        groups: dict[int, float] = {}
        for request, end in zip(requests, ends.tolist(), strict=True):
            groups[request.uid] = max(groups.get(request.uid, end), end)
        self.steps += 1
        self.responses += len(requests)
        self.seconds += whole
        self.done += when_done((ends - first).tolist(), DONE)
        self.over_sampled += when_done([end - first for end in groups.values()], 1 / (1 + EXTRA))
        self.longest = max(self.longest, int(lengths.max()))
        for number, limit in enumerate(LIMITS):
            over = lengths > limit
            count = int(over.sum())
            if count == 0:
                # So it is with all greater limits.
                self.limited[number:] += whole
                break
            self.limited[number] += seconds_with_limit(starts, ends, lengths, limit)
            self.cut[number] += count

    @property
    def done_share(self) -> float:
        """Part of the time in which `DONE` of the responses had ended."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def saved_by_over_sampling(self) -> float:
        """Part of the time that over-sampling would have saved."""
        return 1 - self.over_sampled / self.seconds if self.seconds > 0 else 0.0

    def by_limit(self) -> list[tuple[int, float, float]]:
        """Of each limit below the longest response: (limit, part of the time saved, part of the responses
        cut); those that would have cut more than half are left out."""
        if self.seconds <= 0:
            return []
        return [
            (limit, 1 - float(seconds) / self.seconds, float(cut) / self.responses)
            for limit, seconds, cut in zip(LIMITS, self.limited, self.cut, strict=True)
            if limit < self.longest and cut / self.responses <= 0.5
        ]

    def proposed(self) -> tuple[int, float, float] | None:
        """Of `by_limit` the lowest limit that would have cut `MOST_CUT` of the responses at most."""
        return next((each for each in self.by_limit() if each[2] <= MOST_CUT), None)


def when_done(ends: Sequence[float], share: float) -> float:
    """When `share` of those that ended at these times had ended: the exact time of one of them."""
    ordered = sorted(ends)
    # With a tolerance: 5 / 1.2 * 1.2 may be a little more than 5.
    return ordered[max(0, math.ceil(len(ordered) * share - 1e-9) - 1)]


def seconds_with_limit(starts: _Numbers, ends: _Numbers, lengths: _Numbers, limit: float) -> float:
    """How long a step's responses would have taken to the last, had each ended at `limit` tokens; a response
    is taken to have grown evenly over its time. All of shape (responses,)."""
    cut = np.minimum(1.0, limit / lengths)
    return float((starts + (ends - starts) * cut).max() - starts.min())
