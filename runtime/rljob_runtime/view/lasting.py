"""A view whose output may go away: the reader of a pipe ends, a terminal is closed, a disk is full.

Guarantees: that ends no job; it is told once, in the job's log and on standard error; from then on nothing is
shown, and messages go to the log.
"""

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from rljob_runtime.view import Progress, Summary, View

_log = logging.getLogger(__name__)


class LastingView:
    """See the module's guarantees."""

    def __init__(self, view: View, out: TextIO) -> None:
        """`out`: what `view` shows the job on."""
        self._view = view
        self._out = out
        self._gone = False

    def start(self, progress: Progress) -> None:
        self._show(lambda: self._view.start(progress))

    def update(self, progress: Progress) -> None:
        self._show(lambda: self._view.update(progress))

    def message(self, text: str) -> None:
        if self._gone or not self._show(lambda: self._view.message(text)):
            _log.warning("%s", text)

    def finish(self, summary: Summary) -> None:
        self._show(lambda: self._view.finish(summary))

    def _show(self, draw: Callable[[], None]) -> bool:
        """Whether it was shown."""
        if self._gone:
            return False
        try:
            draw()
        except OSError as error:
            self._gone = True
            why = f"the output cannot be written any more ({error.strerror}); the job goes on without it"
            _log.warning("%s", why)
            # It may have gone as well.
            with suppress(OSError):
                print(f"rljob: {why}", file=sys.stderr, flush=True)
            discard(self._out)
            return False
        return True


def discard(out: TextIO) -> None:
    """Have what is written to `out` from now on, and what it has not written yet, go nowhere: Python would
    write that when it ends, and fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, out.fileno())
    os.close(nowhere)
