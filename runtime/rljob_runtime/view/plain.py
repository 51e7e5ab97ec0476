"""The view of a job as log lines, where the output is no terminal.

Guarantees: whole lines, flushed one by one; progress at the first and the last step, every `EVERY_STEPS`
steps, and as soon as `EVERY_SECONDS` have passed since the last line and a step has ended.
"""

import time
from collections.abc import Callable
from typing import TextIO

from rljob_runtime.view.progress import Progress, Summary, ending, flow, headline, learning, steps_done

EVERY_STEPS = 10
EVERY_SECONDS = 30.0


class PlainView:
    """See the module's guarantees."""

    def __init__(
        self,
        out: TextIO,
        clock: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
    ) -> None:
        self._out = out
        self._clock = clock
        self._time_of_day = time_of_day
        self._written_at = float("-inf")
        self._step = -1
        self._activity: str | None = None

    def start(self, progress: Progress) -> None:
        """Write the header."""
        self._line("   ".join(headline(progress.header)))
        self.update(progress)

    def update(self, progress: Progress) -> None:
        """Write a line if one is due."""
        if progress.activity is not None:
            if progress.activity != self._activity:
                self._line(progress.activity)
            self._activity = progress.activity
            return
        if progress.step > self._step and self._due(progress):
            self._line("  ".join([f"step {steps_done(progress)}", *learning(progress), *flow(progress)]))
            self._step = progress.step
            self._written_at = self._clock()

    def message(self, text: str) -> None:
        """Write a warning or a fault."""
        self._line(text)

    def finish(self, summary: Summary) -> None:
        """Say how it ended."""
        self._line("  ".join(ending(summary)))

    def _due(self, progress: Progress) -> bool:
        return progress.step > 0 and (
            self._step < 0
            or progress.step == progress.total_steps
            or progress.step // EVERY_STEPS > self._step // EVERY_STEPS
            or self._clock() - self._written_at >= EVERY_SECONDS
        )

    def _line(self, text: str) -> None:
        self._out.write(f"{self._time_of_day()}  {text}\n")
        self._out.flush()
