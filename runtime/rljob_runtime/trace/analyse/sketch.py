"""Distributions of positive numbers in constant memory.

Values are counted in buckets whose bounds grow by a constant factor, as in DDSketch (Masson et al., VLDB
2019), so that every quantile is right to `ACCURACY` of its value.
"""

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

ACCURACY = 0.01
"""Largest relative error of a quantile."""
_GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_GROWTH = math.log(_GROWTH)
_ZERO = -(10**6)
"""Bucket of what is not positive."""
_FOLD = 4096
"""Values that are kept as they come before they are counted together, which costs a tenth of one by one."""

Curve: TypeAlias = list[tuple[float, float]]
"""Points (value, share of the values that are at most that)."""


class Sketch:
    """Counts, mean, extremes and quantiles of a stream of numbers."""

    __slots__ = ("_buckets", "_count", "_largest", "_new", "_smallest", "_total")

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._count = 0
        self._total = 0.0
        self._smallest = math.inf
        self._largest = -math.inf
        self._buckets: dict[int, int] = {}
        self._new = array("d", values)

    def add(self, value: float) -> None:
        """Count one value."""
        self._new.append(value)
        if len(self._new) >= _FOLD:
            self._fold()

    def extend(self, values: Sequence[float]) -> None:
        """Count many values."""
        self._new.extend(values)
        if len(self._new) >= _FOLD:
            self._fold()

    @property
    def count(self) -> int:
        return self._count + len(self._new)

    @property
    def total(self) -> float:
        self._fold()
        return self._total

    @property
    def smallest(self) -> float:
        """Infinite without values."""
        self._fold()
        return self._smallest

    @property
    def largest(self) -> float:
        """Minus infinity without values."""
        self._fold()
        return self._largest

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The value that `share` of the values do not exceed; 0 without values."""
        self._fold()
        if not self._count:
            return 0.0
        # A rank from 0; the first bucket with more values below its upper bound than that has it.
        rank = share * (self._count - 1)
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen > rank:
                return self._value(bucket)
        return self._largest

    def curve(self, points: int = 100) -> Curve:
        """The cumulative distribution in about `points` points."""
        self._fold()
        curve: Curve = [(self._smallest, 0.0)] if self._count else []
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            share = seen / self._count
            # Only where the curve has risen by a point's worth: a long tail of single values takes few.
            if share - curve[-1][1] >= 1 / points or seen == self._count:
                curve.append((self._largest if seen == self._count else self._value(bucket), share))
        return curve

    def _fold(self) -> None:
        """Count what has come since the last time."""
        if not self._new:
            return
        values = np.array(self._new)
        self._new = array("d")
        positive = values[values > 0]
        # Bucket i has the values above _GROWTH**(i - 1), up to _GROWTH**i.
        buckets = Counter(np.ceil(np.log(positive) / _LOG_GROWTH).astype(np.int64).tolist())
        if len(positive) < len(values):
            buckets[_ZERO] = len(values) - len(positive)
        for bucket, count in buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self._count += len(values)
        self._total += float(values.sum())
        self._smallest = min(self._smallest, float(values.min()))
        self._largest = max(self._largest, float(values.max()))

    def _value(self, bucket: int) -> float:
        # The value whose relative error is the same at both bounds of the bucket.
        middle = 0.0 if bucket == _ZERO else 2 * _GROWTH**bucket / (_GROWTH + 1)
        return min(self._largest, max(self._smallest, middle))


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
