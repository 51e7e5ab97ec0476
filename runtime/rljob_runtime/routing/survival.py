"""How many tokens responses still generate, by the hazards of all that have ended and all that run: no
distribution is assumed that lengths follow.

Of the responses that were as long as this one, some ended at each length beyond (the Kaplan-Meier estimate).
Those that run count as far as they are known to have run; of the ended ones alone too many are short, for
these end first. Beyond the longest of which enough are known the tail goes on in its shape (a generalized
Pareto tail, shaped by the two last halvings of those that were left: Pickands). So the longer a response is,
the less remains where lengths are uniform, and the more where they are lognormal. Where up to a half
are left there, and not a quarter, there are no two halvings: the tail is exponential, by those of the last
ones that have ended.

Guarantee: nothing is said (None) where too few have ended, or where those that run have outlived the tail
that was expected of them: lengths of two kinds look like short ones alone until then. Pure. Lengths are in
response tokens.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

_AT_RISK = 4, 8
"""Responses that were as long; with fewer of them, nothing is known of how many end at a length. A quarter of
all of them, at least and at most."""
_DOUBT = 8
"""Ends in the last halving with which its shape counts as much as that of an exponential tail."""
_SHAPES = (-1.0, 0.5)
"""Shape of a tail, at least and at most: that of uniform lengths, and one heavier than of lognormal ones."""
_LEFT = 0.25
"""Part of all responses that are left where the tail begins, at most: else it has no two halvings before."""
_HALF, _LAST = 0.5, 3
"""The same where the tail is taken from the last ones, and how many of these must have ended."""
_SURPRISE = 3.0
"""Ends that were expected beyond the last one and did not come, from which on the tail is not believed. By
chance that many stay away once in 20 times."""
_LEAST = 0.02
"""Of the tokens of a response, the part that it is expected to generate still, at least."""
_EXPONENTIAL = 1e-6
"""Shape below which a tail is as good as exponential."""


class Survival:
    """Of one moment. `ended`: lengths of complete responses; `running`: tokens of those that run; both are
    ascending."""

    def __init__(self, ended: Sequence[int], running: Sequence[int]) -> None:
        self._ends: list[int] = []
        """Lengths at which responses ended, ascending."""
        self._left: list[float] = [1.0]
        """Part of all responses that is longer than each of them; first of all, than none."""
        counted, (least, most) = 0, _AT_RISK
        enough = max(least, min(most, (len(ended) + len(running)) // 4))
        while counted < len(ended):
            length = ended[counted]
            after = bisect_right(ended, length, counted)
            at_risk = len(ended) - counted + len(running) - bisect_left(running, length)
            if at_risk < enough:
                break
            self._ends.append(length)
            self._left.append(self._left[-1] * (1 - (after - counted) / at_risk))
            counted = after
        self._shape = self._tail = 0.0
        """Of the tail, and the mean of what remains where it begins."""
        self._areas: list[float] = []
        """For each end the tokens that come after it, as a mean over all responses."""
        two_halvings = self._left[-1] <= _LEFT
        last_ones = self._left[-1] <= _HALF and len(ended) - counted >= _LAST
        self._believed = bool(self._ends) and (two_halvings or last_ones)
        if not self._believed:
            return
        if self._left[-1] > 0:
            last = self._ends[-1]
            beyond = sum(tokens - last for tokens in running[bisect_right(running, last) :])
            if two_halvings:
                self._shape, self._tail = self._fitted(counted, ended)
            else:
                self._tail = (sum(ended[counted:]) + beyond) / (len(ended) - counted) - last
            # At its beginning the tail's hazard is one end in so many tokens.
            self._believed = beyond <= _SURPRISE * self._tail * (1 - self._shape)
        self._areas = self._summed()

    def _fitted(self, counted: int, ended: Sequence[int]) -> tuple[float, float]:
        """Shape of the tail, and the mean of what remains where it begins."""
        left, last = self._left[-1], self._ends[-1]
        middle, begin = self._reached(2 * left), self._reached(4 * left)
        # Equal lengths are half a token apart at least.
        late, early = max(0.5, last - middle), max(0.5, middle - begin)
        ends = counted - bisect_right(ended, middle)
        shape = math.log2(late / early) * ends / (ends + _DOUBT)
        shape = min(max(shape, _SHAPES[0]), _SHAPES[1])
        # The scale grows by `shape` a token. At `middle` it is such that half are left after `late` tokens.
        grown = 2.0**shape
        exponential = abs(shape) < _EXPONENTIAL
        scale = late / math.log(2) if exponential else late * shape / (grown - 1) * grown
        return shape, scale / (1 - shape)

    def _reached(self, left: float) -> int:
        """The length beyond which at most this part of all responses is left."""
        place = bisect_left(self._left, -left, key=lambda part: -part)
        return self._ends[place - 1] if place else 0

    def _summed(self) -> list[float]:
        area = self._left[-1] * self._tail
        areas = [area]
        for place in range(len(self._ends) - 1, 0, -1):
            area += self._left[place] * (self._ends[place] - self._ends[place - 1])
            areas.append(area)
        return areas[::-1]

    def remaining(self, tokens: int) -> float | None:
        """Mean of what a response with so many tokens generates still; None where nothing is known of it."""
        if not self._believed:
            return None
        place = bisect_right(self._ends, tokens)
        if place < len(self._ends):
            found = self._ends[place] - tokens + self._areas[place] / self._left[place]
        else:
            found = self._tail + self._shape / (1 - self._shape) * (tokens - self._ends[-1])
        return max(_LEAST * tokens, found)
