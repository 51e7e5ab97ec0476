"""What waits to be sent to a logger, and when it is tried again after a failure.

Guarantees: points leave in the order in which they came; no more than a given number wait, and of more the
oldest are left out and counted; a failed batch is sent again, later and later; of a refused batch each point
is sent by itself, and left out where it is refused again. Each point ends once: as sent, refused or lost.
Pure: no clock, no I/O.
"""

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from rljob_runtime.trace.loggers.answers import Next

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_DENIED_PAUSE = 60.0
_LONGEST_DENIED_PAUSE = 3600.0
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
        self.sent = 0
        """Points that arrived."""
        self.refused = 0
        """Points that the logger does not take."""
        self.lost = 0
        """Points that were left out, or given up."""
        self.failures = 0
        """Attempts to send that failed."""
        self._most = most
        self._points: deque[Point] = deque()
        self._sending = 0
        """Points of the first that are being sent."""
        self._singly = 0
        """Points of the first that are to be sent each by itself."""
        self._failed_in_a_row = 0

    def __len__(self) -> int:
        return len(self._points)

    def add(self, point: Point) -> bool:
        """A new point, the last to be sent. Whether there was room; if not, the oldest is left out."""
        self._points.append(point)
        if len(self._points) <= self._most:
            return True
        self._points.popleft()
        self.lost += 1
        # It may be on its way; whether it arrives or not, it is not sent again.
        self._sending = max(0, self._sending - 1)
        self._singly = max(0, self._singly - 1)
        return False

    def batch(self) -> list[Point]:
        """The points to send now; `ended` follows."""
        found = list(islice(self._points, 1 if self._singly else _BATCH))
        self._sending = len(found)
        return found

    def ended(self, following: Next) -> float:
        """The attempt to send the batch is over, and this follows it. In how many seconds to go on."""
        pause = 0.0
        match following:
            case Next.GO_ON:
                self.sent += self._take_away()
            case Next.AGAIN_LATER:
                pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**self._failed_in_a_row)
            case Next.MUCH_LATER:
                pause = min(_LONGEST_DENIED_PAUSE, _DENIED_PAUSE * 2.0**self._failed_in_a_row)
            case Next.SINGLY:
                self._singly = self._sending
            case Next.LEAVE_OUT:
                self.refused += self._take_away()
        self.failures += following is not Next.GO_ON
        failed = following in (Next.AGAIN_LATER, Next.MUCH_LATER)
        self._failed_in_a_row = self._failed_in_a_row + 1 if failed else 0
        self._sending = 0
        return pause

    def give_up(self) -> None:
        """Nothing is sent any more: what waits is lost."""
        self.lost += len(self._points)
        self._points.clear()
        self._sending = self._singly = 0

    def _take_away(self) -> int:
        """The points of the batch wait no more; how many they are."""
        for _ in range(self._sending):
            self._points.popleft()
        self._singly = max(0, self._singly - self._sending)
        return self._sending
