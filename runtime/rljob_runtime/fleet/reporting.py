"""How often engines tell how far their requests are."""

from functools import partial

from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool

_SHORTEST_SECONDS = 0.5
_REPORTS_PER_SECOND = 150
"""Most reports that the driver is to take in. One of a hundred requests costs it about 0.3 ms, from the
socket to the router, so that all of them take about a twentieth of its time."""
_AGAIN = 1.25
"""Factor by which the time between two reports changes before engines are told: that is a message to each."""


def report_seconds(engines: int) -> float:
    """Time between two reports of an engine, in a job that has so many."""
    return max(_SHORTEST_SECONDS, engines / _REPORTS_PER_SECOND)


def differs(told: float, seconds: float) -> bool:
    """Whether engines that were told to report every `told` seconds are to be told `seconds` instead."""
    return not told / _AGAIN < seconds < told * _AGAIN


class Reporting:
    """Has the engines of a pool report as often as the number of workers allows, however that changes."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._seconds = report_seconds(0)

    def workers(self, count: int) -> None:
        """There are so many workers from now on, those that are coming among them."""
        seconds = report_seconds(count)
        if differs(self._seconds, seconds):
            self._seconds = seconds
            for slot in self._pool.slots:
                self.begin(slot)

    def begin(self, slot: EngineSlot) -> None:
        """Have a live engine report to the pool."""
        slot.engine.on_progress(partial(self._pool.progressed, slot), self._seconds)
