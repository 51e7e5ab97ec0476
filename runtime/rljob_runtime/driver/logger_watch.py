"""The loggers of a run, as a person is told of them.

Guarantees: the first failure of each is told once, and so are that it does not take the job's key or
address, with what to do, and its first refusal of points; at the end it is
told, and recorded for the report, what was not sent and why.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rljob_runtime.trace.loggers.forwarder import Forwarder, close_all
from rljob_runtime.trace.record.unsent_log import KEPT, Unsent, append_unsent

log = logging.getLogger(__name__)


class LoggerWatch:
    """See the module's guarantees."""

    def __init__(
        self, loggers: Sequence[Forwarder], folder: Path, seconds: float, clock: Callable[[], float]
    ) -> None:
        """`folder`: of the run; `seconds`: how long its end waits for all of them; `clock`: seconds since the
        epoch."""
        self.loggers = loggers
        self.unsent: list[Unsent] = []
        """What was not sent; complete after `close`."""
        self._folder = folder
        self._seconds = seconds
        self._clock = clock
        self._denials_told: set[str] = set()
        self._told: set[str] = set()
        """Loggers whose first failure was told."""
        self._refusals_told: set[str] = set()

    def metrics(self) -> Mapping[str, Mapping[str, int]]:
        """Values of a step's row, by the names of the loggers; nothing without loggers."""
        if not self.loggers:
            return {}
        return {
            "logger_failures": {logger.name: logger.failures for logger in self.loggers},
            "logger_lost": {logger.name: logger.unsent for logger in self.loggers},
        }

    def news(self) -> list[str]:
        """Loggers that failed, or refused points, for the first time since this was asked before, a line for
        each."""
        found = []
        for logger in self.loggers:
            if logger.name not in self._denials_told and (why := logger.denial) is not None:
                # In place of a failure that was not told yet: it may be this one.
                self._denials_told.add(logger.name)
                self._told.add(logger.name)
                found.append(
                    f"{logger.name}: metrics are not sent: {why}. Training goes on, sending is tried again "
                    f"at least once an hour, and {KEPT}"
                )
            if logger.name not in self._told and (why := logger.trouble) is not None:
                self._told.add(logger.name)
                found.append(
                    f"{logger.name}: metrics are not sent for now: {why}. Training goes on, sending is tried "
                    f"again, and {KEPT}"
                )
            if logger.name not in self._refusals_told and (why := logger.refusal) is not None:
                self._refusals_told.add(logger.name)
                found.append(
                    f"{logger.name}: a step or evaluation is refused: {why}. It is left out there, as all "
                    f"that are refused are; the others are sent, and {KEPT}"
                )
        return found

    def close(self) -> None:
        """Send what waits, as long as the job's end may take for that, and record what was not sent."""
        close_all(self.loggers, self._seconds)
        for logger in self.loggers:
            if logger.lost:
                why = logger.why(f"no answer within {self._seconds:g} s")
                each = Unsent(logger.name, self._clock(), logger.lost, why)
                self.unsent.append(each)
                try:
                    append_unsent(self._folder, each)
                    logger.told()
                except OSError as error:
                    log.warning("what %s did not get is not recorded: %s", each.logger, error)
