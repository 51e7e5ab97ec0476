"""The simulation's clock: what happens next, in order of time, and of arrival among equal times. Pure."""

import heapq
from collections.abc import Callable
from itertools import count

Happening = Callable[[], None]


class Agenda:
    """Future happenings and the present time, in seconds from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Happening]] = []
        self._order = count()

    def at(self, time: float, happening: Happening) -> None:
        """Let this happen at `time`; a time that is past means now."""
        heapq.heappush(self._heap, (max(time, self.now), next(self._order), happening))

    @property
    def next(self) -> float | None:
        """When the next happening is; None: nothing will happen."""
        return self._heap[0][0] if self._heap else None

    def advance(self) -> bool:
        """Go to the next time at which anything happens, and let all of it happen; False: nothing will."""
        if not self._heap:
            return False
        self.now = self._heap[0][0]
        while self._heap and self._heap[0][0] <= self.now:
            heapq.heappop(self._heap)[2]()
        return True
