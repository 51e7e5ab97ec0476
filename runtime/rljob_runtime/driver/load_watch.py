"""Looks how busy the pools are while a step is under way, for whoever follows the job.

Guarantees: the view is brought up to date every `LOOK_SECONDS`; the status is written no more often than it
would be with a step each `TELL_SECONDS`, and only where the pools are noticeably more or less busy than it
says (`site.load`).
"""

import asyncio
from collections.abc import Awaitable, Callable

from rljob_runtime.driver.tracker import Tracker
from rljob_runtime.site.status_draft import StatusDraft
from rljob_runtime.view import View

LOOK_SECONDS = 5.0
"""A look adds up what the driver knows of its engines, and asks none of them."""
TELL_SECONDS = 60.0
"""A write of the status wakes all who watch the RLJob, and the shares are of a minute at least."""


class LoadWatch:
    """See the module's guarantees."""

    def __init__(
        self,
        tracker: Tracker,
        draft: StatusDraft,
        view: View,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` is in seconds and never goes back."""
        self._tracker = tracker
        self._draft = draft
        self._view = view
        self._clock = clock
        self._sleep = sleep
        self._told_at = clock()

    def told(self) -> None:
        """The status has just been told of a step, and of the pools with it."""
        self._told_at = self._clock()

    async def run(self) -> None:
        """Look, until cancelled."""
        while True:
            await self._sleep(LOOK_SECONDS)
            if not self._tracker.look():
                continue
            progress = self._tracker.progress
            self._view.update(progress)
            if self._clock() - self._told_at >= TELL_SECONDS and self._draft.load(progress):
                self.told()
