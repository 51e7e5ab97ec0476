"""What waits to be sent to a logger, and when it is tried again after a failure.

Guarantees: points leave in the order in which they came; no more than a given number wait, and of more the
oldest are left out and counted; a failed batch is sent again, later and later. Pure: no clock, no I/O.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_BATCH = 100
"""Most points that are sent at a time."""


class Point(NamedTuple):
    """Values of a step, by their names in TensorBoard."""

    step: int
    time: float
    """Seconds since the epoch."""
    values: Mapping[str, float]


class Backlog:
    """See the module's guarantees. The points of the batch that is being sent wait too."""

    def __init__(self, most: int) -> None:
        self.lost = 0
        """Points that were left out."""
        self.failures = 0
        """Attempts to send that failed."""
        self._most = most
        self._points: deque[Point] = deque()
        self._sending = 0
        """Points of the first that are being sent."""
        self._failed_in_a_row = 0

    def __len__(self) -> int:
        return len(self._points)

    def add(self, point: Point) -> None:
        """A new point, the last to be sent."""
        self._points.append(point)
        if len(self._points) > self._most:
            self._points.popleft()
            self.lost += 1
            # It may be on its way; whether it arrives or not, it is not sent again.
            self._sending = max(0, self._sending - 1)

    def batch(self) -> list[Point]:
        """The points to send now; `sent` or `failed` follows."""
        found = list(self._points)[:_BATCH]
        self._sending = len(found)
        return found

    def sent(self) -> None:
        """The batch has arrived."""
        for _ in range(self._sending):
            self._points.popleft()
        self._sending = self._failed_in_a_row = 0

    def failed(self) -> float:
        """The batch has not arrived; in how many seconds to try again."""
        self.failures += 1
        self._sending = 0
        self._failed_in_a_row += 1
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** (self._failed_in_a_row - 1))

    def give_up(self) -> None:
        """Nothing is sent any more: what waits is lost."""
        self.lost += len(self._points)
        self._points.clear()
        self._sending = 0
