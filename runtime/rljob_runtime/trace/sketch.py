"""Distributions of positive numbers in constant memory.

Values are counted in buckets whose bounds grow by a constant factor, as in DDSketch (Masson et al., VLDB
2019), so that every quantile is right to `ACCURACY` of its value.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

ACCURACY = 0.01
_GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_GROWTH = math.log(_GROWTH)
_ZERO = -(10**6)
"""Bucket of what is not positive."""

Curve: TypeAlias = list[tuple[float, float]]
"""Points (value, share of the values that are at most that)."""


class Sketch:
    """Counts, mean, extremes and quantiles of a stream of numbers."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        self.count = 0
        self.total = 0.0
        self.smallest = math.inf
        self.largest = -math.inf
        self._buckets: Counter[int] = Counter()
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        """Count one value."""
        self.count += 1
        self.total += value
        self.smallest = min(self.smallest, value)
        self.largest = max(self.largest, value)
        self._buckets[math.ceil(math.log(value) / _LOG_GROWTH) if value > 0 else _ZERO] += 1

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The value that `share` of the values do not exceed; 0 without values."""
        if not self.count:
            return 0.0
        rank = share * (self.count - 1)
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen > rank:
                return self._value(bucket)
        return self.largest

    def curve(self, points: int = 100) -> Curve:
        """The cumulative distribution in about `points` points."""
        curve: Curve = [(self.smallest, 0.0)] if self.count else []
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            share = seen / self.count
            if share - curve[-1][1] >= 1 / points or seen == self.count:
                curve.append((self.largest if seen == self.count else self._value(bucket), share))
        return curve

    def _value(self, bucket: int) -> float:
        middle = 0.0 if bucket == _ZERO else 2 * _GROWTH**bucket / (_GROWTH + 1)
        return min(self.largest, max(self.smallest, middle))


def exact_curve(values: Sequence[float], points: int = 60) -> Curve:
    """The cumulative distribution of a few values, in at most `points` + 2 points."""
    ordered = sorted(values)
    if not ordered:
        return []
    stride = max(1, math.ceil(len(ordered) / points))
    curve = [(ordered[0], 0.0)]
    curve.extend(
        (ordered[index], (index + 1) / len(ordered)) for index in range(stride - 1, len(ordered), stride)
    )
    if curve[-1][1] < 1:
        curve.append((ordered[-1], 1.0))
    return curve
