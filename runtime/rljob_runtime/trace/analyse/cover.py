"""The union of many time intervals, built up as they come.

Guarantees: exact up to `GAP` (a shorter pause between two intervals counts as covered); intervals may come in
any order, and in nearly ascending order of their ends each costs amortised constant time.
"""

from array import array
from bisect import bisect_right

GAP = 0.001
"""Seconds. So short a pause is no waiting, and without them far fewer intervals are kept."""


class Cover:
    """Disjoint, ascending intervals."""

    def __init__(self) -> None:
        self._starts = array("d")
        self._ends = array("d")

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: float, end: float) -> None:
        """Cover [start, end] too."""
        starts, ends = self._starts, self._ends
        if starts and starts[-1] <= start <= ends[-1] + GAP:
            # The common case: it begins within the newest one.
            if end > ends[-1]:
                ends[-1] = end
            return
        # What lies behind the new interval is set aside, what touches it becomes one with it.
        after: list[tuple[float, float]] = []
        while starts and starts[-1] > end + GAP:
            after.append((starts.pop(), ends.pop()))
        while starts and ends[-1] >= start - GAP:
            start, end = min(start, starts.pop()), max(end, ends.pop())
        starts.append(start)
        ends.append(end)
        for later_start, later_end in reversed(after):
            starts.append(later_start)
            ends.append(later_end)

    def within(self, start: float, end: float) -> float:
        """Covered seconds of [start, end]."""
        covered = 0.0
        # Intervals are disjoint, so that their ends ascend too.
        for index in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[index] >= end:
                break
            covered += min(end, self._ends[index]) - max(start, self._starts[index])
        return covered
