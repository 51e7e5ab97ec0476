"""Sends metrics to one logger, from a thread of its own.

Guarantees: `send` never waits, whatever the logger does; what fails is counted, told in the log (the first
time and whenever it works again), and tried again, seldom where the logger does not take the job's key or
address; what the logger refuses is counted, the first refusal told, and holds up nothing else; `close`
returns by its deadline, and says what was not sent. Keys do not come into the log.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rljob_runtime.trace.loggers.answers import Answer, Next, next_after
from rljob_runtime.trace.loggers.backlog import Backlog, Point
from rljob_runtime.trace.loggers.reached import ReachedFile
from rljob_runtime.trace.record.unsent_log import KEPT

_log = logging.getLogger(__name__)

SECRETS = ("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "RLJOB_WEBHOOK_TOKEN")
"""Variables of the environment that hold keys of loggers."""


class LoggerAway(Exception):
    """The logger did not see to the points, which are to be sent again; the message says why, in one line."""


class LoggerDenied(LoggerAway):
    """It does not take the job's key, or there is no such address; the message says what to do, too."""


class PointsRefused(Exception):
    """The logger takes no such points, however often they come; the message says why, in one line."""


class Sink(Protocol):
    """A logger that can be reached. Used by one thread alone."""

    def log(self, points: Sequence[Point]) -> None:
        """Hand over points, in order. `PointsRefused`: it does not take one of them; whatever else it raises
        means that they are to be sent again, `LoggerDenied` much later."""
        ...

    def close(self) -> None:
        """There are no more."""
        ...


class Forwarder:
    """See the module's guarantees."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], Sink],
        buffer: int,
        reached: ReachedFile | None = None,
    ) -> None:
        """`connect` reaches the logger, and may take its time or raise; `buffer`: most points that wait;
        `reached`: where it is written down which points were sent or refused."""
        self.name = name
        self._connect = connect
        self._reached = reached
        self._told = False
        self._buffer = buffer
        self._backlog = Backlog(buffer)
        self._changed = threading.Condition()
        self._closing = False
        self._ended = False
        self._away = False
        self._trouble: str | None = None
        self._denial: str | None = None
        self._refusal: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"logger-{name}", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Points that the logger does not get: it refused them, there were too many, or the job had ended."""
        return self._backlog.lost + self._backlog.refused

    @property
    def refused(self) -> int:
        """Those of `lost` that the logger refused."""
        return self._backlog.refused

    @property
    def refusal(self) -> str | None:
        """Why the first of them was refused, in one line; None where none was."""
        return self._refusal

    @property
    def unsent(self) -> int:
        """Points that the logger has not got: `lost`, and those that wait while it is away."""
        return self.lost + (len(self._backlog) if self._away else 0)

    @property
    def trouble(self) -> str | None:
        """How sending failed when it last began to fail, or that too much waits, in one line; None where
        neither was ever so."""
        return self._trouble

    @property
    def denial(self) -> str | None:
        """How it first did not take the job's key or address, and what to do; None where it never was so."""
        return self._denial

    @property
    def failures(self) -> int:
        """Attempts to send that failed."""
        return self._backlog.failures

    def send(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Values of a step, by name; `time` in seconds since the epoch."""
        with self._changed:
            if not self._backlog.add(Point(step, time, dict(values))) and self._trouble is None:
                # It has not failed: it takes longer than steps do, or does not return.
                most = f"more than {self._buffer:,} steps or evaluations"
                self._trouble = f"{most} wait for it, and the oldest are left out"
                _log.warning("%s: %s", self.name, self._trouble)
            self._changed.notify_all()

    def are_gone(self, points: int) -> None:
        """So many points, 1 or more, that were to be sent are nowhere any more."""
        with self._changed:
            self._backlog.lost += points
            self._trouble = self._trouble or "metrics.jsonl has them no more"

    def why(self, otherwise: str) -> str:
        """Why it does not get what is `lost`, in one line; `otherwise`: where no failure explains it."""
        others = self._trouble or otherwise
        if not self.refused:
            return others
        if self.refused == self.lost:
            return f"refused: {self._refusal}"
        return f"{self.refused:,} refused: {self._refusal}; the others: {others}"

    def told(self) -> None:
        """What is `lost` is told in `unsent.jsonl`. After `close`."""
        self._told = True
        if self._reached is not None and self.lost:
            self._reached.told()

    def close(self, seconds: float) -> None:
        """Send what waits, for at most so many seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            # The thread may be in a library that does not return: it is a daemon, and ends with the process.
            self._changed.wait_for(lambda: self._ended, seconds)
            self._backlog.give_up()
            if self.lost:
                _log.warning("%s: %d steps or evaluations were not sent; %s", self.name, self.lost, KEPT)

    def _run(self) -> None:
        sink: Sink | None = None
        try:
            while (points := self._next()) is not None:
                answer, why = Answer.TAKEN, ""
                try:
                    sink = sink or self._connect()
                    sink.log(points)
                except PointsRefused as error:
                    answer, why = Answer.REFUSED, in_words(error)
                except LoggerDenied as error:
                    answer, why = Answer.DENIED, in_words(error)
                # Whatever a library of others raises is that logger's failure alone.
                except Exception as error:  # noqa: BLE001
                    answer, why = Answer.AWAY, in_words(error)
                following = next_after(answer, len(points))
                self._answered(following, why)
                if self._reached is not None and following in (Next.GO_ON, Next.LEAVE_OUT):
                    untold = 0 if self._told else self.lost
                    self._reached.passed(points, untold, self.why("no answer") if untold else "")
            if sink is not None:
                self._end(sink)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _next(self) -> list[Point] | None:
        """The next points to send; None when there are no more, now and later."""
        with self._changed:
            # No deadline: it waits for a step, or for the end of the job, which both notify.
            self._changed.wait_for(lambda: len(self._backlog) or self._closing)
            return self._backlog.batch() or None

    def _answered(self, following: Next, why: str) -> None:
        """Tell of an attempt, and wait until it is time for what follows. `why`: how it failed, in words."""
        denied = following is Next.MUCH_LATER
        away = denied or following is Next.AGAIN_LATER
        if (away and not self._away) or (denied and self._denial is None):
            self._trouble = why
            _log.warning("%s: metrics are not sent for now: %s", self.name, why)
        if denied and self._denial is None:
            self._denial = why
        if self._away and not away:
            _log.warning("%s: metrics are sent again", self.name)
        self._away = away
        with self._changed:
            if following is Next.LEAVE_OUT and self._refusal is None:
                self._refusal = why
                _log.warning(
                    "%s: a step or evaluation is refused, and left out: %s; further ones are counted",
                    self.name, why,
                )  # fmt: skip
            pause = self._backlog.ended(following)
            if away:
                # At the end of the job there is one more attempt.
                if self._closing:
                    self._backlog.give_up()
                self._changed.wait_for(lambda: self._closing, pause)

    def _end(self, sink: Sink) -> None:
        try:
            sink.close()
        except Exception as error:  # noqa: BLE001 (as in `_run`)
            _log.warning("%s: could not be ended: %s", self.name, in_words(error))


def close_all(forwarders: Sequence[Forwarder], seconds: float) -> None:
    """Close each, all of them by one deadline."""
    deadline = time.monotonic() + seconds
    for forwarder in forwarders:
        forwarder.close(max(0.0, deadline - time.monotonic()))


def in_words(error: BaseException, limit: int = 300) -> str:
    """What an error says, in one line, without keys."""
    text = " ".join(str(error).split())[:limit] or type(error).__name__
    for name in SECRETS:
        if key := os.environ.get(name):
            text = text.replace(key, "***")
    return text if isinstance(error, LoggerAway | PointsRefused) else f"{type(error).__name__}: {text}"
