"""Tells how far an engine's running requests are, every so often while any runs.

Guarantees: nothing ticks while no request runs, nor while the engine is paused; what is told is as new as the
engine knows it after it was last asked to catch up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from rljob_runtime.engines.protocol import ProgressListener


class ProgressReports:
    """See the module's guarantees."""

    def __init__(
        self,
        counts: Callable[[], Mapping[str, int]],
        prefilled: Callable[[], int],
        catch_up: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`counts` gives the tokens of each running request by its id; nothing where none advances.
        `prefilled`: as listeners are told, after `counts` was asked. `catch_up`, which is awaited before each
        report and must not raise, makes both exact where they are not so by themselves."""
        self._counts, self._prefilled = counts, prefilled
        self._catch_up = catch_up
        self._listener: ProgressListener | None = None
        self._seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._catching_up: asyncio.Future[None] | None = None

    def listen(self, listener: ProgressListener, seconds: float) -> None:
        """Tell `listener` instead of whoever was told before, every `seconds`."""
        self.stop()
        self._listener, self._seconds = listener, seconds
        if self._counts():
            self.wake()

    def wake(self) -> None:
        """Requests run: the next report is due in `seconds`, unless one is due already."""
        if self._timer is None and self._catching_up is None and self._listener is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._due)

    def stop(self) -> None:
        """Tell nobody any more."""
        self._listener = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._catching_up is not None:
            self._catching_up.cancel()
            self._catching_up = None

    def _due(self) -> None:
        self._timer = None
        if self._catch_up is None:
            self._tell()
        elif self._counts():
            self._catching_up = asyncio.ensure_future(self._tell_exactly(self._catch_up))

    async def _tell_exactly(self, catch_up: Callable[[], Awaitable[None]]) -> None:
        await catch_up()
        self._catching_up = None
        self._tell()

    def _tell(self) -> None:
        counts = self._counts()
        # Nothing advances: the engine calls `wake` when something does.
        if counts and self._listener is not None:
            self._listener(counts, self._prefilled())
            self.wake()
