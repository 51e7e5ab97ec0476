"""How much slower than the others of its pool an engine is, measured while engines run.

Engines of a pool are alike, until one of them is not: it has its GPU together with the trainer, on a busy or
a slower machine. Guarantees: engines that differ by less than a quarter are alike. Chance in what is measured
makes none of them look better, nor does a step's cost that is no straight line in the number of requests, of
which engines for long responses run few. Pure.
"""

import math
from collections.abc import Iterable
from statistics import median_low

_FORGET = 0.98
"""What a measurement's weight is multiplied by with each of the same engine that follows: after fifty it
counts a third."""
_ENOUGH = 10
"""Measurements of an engine before which it counts as an ordinary one."""
_DIFFERS, _DIFFERED = math.log(1.3), math.log(1.2)
"""From which difference on, of the logarithm, an engine counts as slower or quicker; and until which one that
counted so does still."""


class Slowness:
    """Of the engines of one pool, by their numbers."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float, int]] = {}
        """Of each engine: sum of the weighted logarithms, of the weights, and the number of measurements."""
        self._known: dict[int, float] = {}

    def add(self, engine: int, ratio: float) -> None:
        """A step of this engine took `ratio` times as long as that of an ordinary one would have."""
        total, weight, number = self._seen.get(engine, (0.0, 0.0, 0))
        self._seen[engine] = _FORGET * total + math.log(ratio), _FORGET * weight + 1, number + 1

    def of(self, engine: int) -> float:
        """How many times as long as an ordinary engine this one takes, when that was last compared."""
        return self._known.get(engine, 1.0)

    def compare(self, engines: Iterable[int]) -> None:
        """Compare these engines, all that there are; what is known of others is forgotten."""
        self._seen = {engine: self._seen[engine] for engine in engines if engine in self._seen}
        logs = {
            engine: total / weight
            for engine, (total, weight, number) in self._seen.items()
            if number >= _ENOUGH
        }
        middle = median_low(logs.values()) if logs else 0.0
        self._known = {
            engine: math.exp(found - middle)
            for engine, found in logs.items()
            if abs(found - middle) > (_DIFFERED if engine in self._known else _DIFFERS)
        }
