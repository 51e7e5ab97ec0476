"""Tells how far an engine's running requests are, every so often while any runs.

Guarantees: nothing ticks while no request runs, nor while the engine is paused; what is told is exact at the
moment in which it is told.
"""

import asyncio
from collections.abc import Callable, Mapping

from rljob_runtime.engines.protocol import ProgressListener


class ProgressReports:
    """See the module's guarantees."""

    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """`counts` gives the tokens of each running request by its id; nothing where none advances."""
        self._counts = counts
        self._listener: ProgressListener | None = None
        self._seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def listen(self, listener: ProgressListener, seconds: float) -> None:
        """Tell `listener` instead of whoever was told before, every `seconds`."""
        self.stop()
        self._listener, self._seconds = listener, seconds
        if self._counts():
            self.wake()

    def wake(self) -> None:
        """Requests run: the next report is due in `seconds`, unless one is due already."""
        if self._timer is None and self._listener is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._tell)

    def stop(self) -> None:
        """Tell nobody any more."""
        self._listener = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self._timer = None
        counts = self._counts()
        # Nothing advances: the engine calls `wake` when something does.
        if counts and self._listener is not None:
            self._listener(counts)
            self.wake()
