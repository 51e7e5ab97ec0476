"""How far a logger has got with a run, and what of the run's files is beyond that.

Guarantees: what a logger was not sent when a driver ended, however it ended, is beyond, as long as
`metrics.jsonl` and `evaluations.jsonl` have it; what it was sent is beyond only where the driver ended before
that was written down. The file is replaced whole.
"""

import heapq
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.loggers.backlog import Point
from rljob_runtime.trace.record.evaluation_log import EVALUATION_CURVES, read_evaluations
from rljob_runtime.trace.record.evaluation_log import scalars as of_evaluation
from rljob_runtime.trace.record.metrics_log import METRICS_FILE
from rljob_runtime.trace.record.metrics_log import scalars as of_step
from rljob_runtime.trace.record.whole_lines import whole_lines

_log = logging.getLogger(__name__)


class Mark(msgspec.Struct, frozen=True):
    """The newest point that a logger was sent, of steps or of evaluations."""

    step: int
    """Steps done."""
    time: float
    """Seconds since the epoch."""


class Reached(msgspec.Struct, frozen=True):
    """How far a logger has got; None for what it has nothing of."""

    steps: Mark | None = None
    evaluations: Mark | None = None
    lost: int = 0
    """Points before these marks that it does not get, and that `unsent.jsonl` does not tell of."""
    why: str = ""
    """Why, in one line."""

    @property
    def time(self) -> float:
        """Of the newest point, seconds since the epoch; 0 where it has none."""
        return max((mark.time for mark in (self.steps, self.evaluations) if mark is not None), default=0.0)

    def after(self, points: Sequence[Point]) -> "Reached":
        """The same once these points were sent, in order, or refused."""
        steps, evaluations = self.steps, self.evaluations
        for point in points:
            if _is_evaluation(point):
                evaluations = Mark(point.step, point.time)
            else:
                steps = Mark(point.step, point.time)
        return msgspec.structs.replace(self, steps=steps, evaluations=evaluations)


_decoder = msgspec.json.Decoder(Reached)


class ReachedFile:
    """Keeps `Reached` on disk. May be used by several threads."""

    def __init__(self, path: Path) -> None:
        """A file that is not there, or cannot be read, says that the logger has nothing. Raises `OSError`."""
        self._path = path
        self._failed = False
        self._lock = threading.Lock()
        try:
            self.reached = _decoder.decode(path.read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            self.reached = Reached()

    def passed(self, points: Sequence[Point], lost: int, why: str) -> None:
        """These points were sent, in order, or refused; `lost`, `why`: as in `Reached`. A file that cannot be
        written is told once: after a restart more points are sent again then."""
        with self._lock:
            self.reached = msgspec.structs.replace(self.reached.after(points), lost=lost, why=why)
            self._write()

    def told(self) -> None:
        """What was lost is told in `unsent.jsonl`."""
        with self._lock:
            self.reached = msgspec.structs.replace(self.reached, lost=0, why="")
            self._write()

    def _write(self) -> None:
        try:
            replace_file(self._path, msgspec.json.encode(self.reached))
        except OSError as error:
            if not self._failed:
                _log.warning("%s: how far the logger has got is not written down: %s", self._path, error)
            self._failed = True


def replace_file(path: Path, content: bytes) -> None:
    """By renaming: a kill leaves the file as it was, or as it is to be. Raises `OSError`."""
    path.parent.mkdir(exist_ok=True)
    whole = path.with_name(f"{path.name}.tmp")
    whole.write_bytes(content)
    whole.replace(path)


def is_beyond(step: int, time: float, mark: Mark | None) -> bool:
    """Whether a record of so many steps done is newer than the last one that was sent. An earlier step that
    was recorded later is one that was trained again."""
    return mark is None or step > mark.step or time > mark.time


def points_beyond(folder: Path, reached: Reached) -> Iterator[Point]:
    """What the files of the run in `folder` have beyond it, in order of time. Raises `OSError`."""
    return heapq.merge(_steps(folder, reached.steps), _evaluations(folder, reached.evaluations), key=_time)


class StepsThere:
    """Counts the steps beyond that `metrics.jsonl`, which is thinned out, still has."""

    def __init__(self, reached: Reached) -> None:
        self._first = 0 if reached.steps is None else reached.steps.step
        self._newest = self._first
        self._there = 0

    def add(self, point: Point) -> None:
        """The next of `points_beyond`."""
        if not _is_evaluation(point) and point.step > self._newest:
            self._newest = point.step
            self._there += 1

    @property
    def gone(self) -> int:
        """Steps between those that it has."""
        return self._newest - self._first - self._there


class _Head(msgspec.Struct):
    """What says whether a row of `metrics.jsonl` is beyond."""

    step: int
    time: float


_head_decoder = msgspec.json.Decoder(_Head)
_row_decoder = msgspec.json.Decoder(dict[str, Any])


def _steps(folder: Path, mark: Mark | None) -> Iterator[Point]:
    try:
        for head, line in whole_lines(folder / METRICS_FILE, _head_decoder):
            if head is not None and is_beyond(step_number(head.step), head.time, mark):
                row: Mapping[str, Any] = _row_decoder.decode(line)
                yield Point(step_number(head.step), head.time, of_step(row))
    except FileNotFoundError:
        return


def _evaluations(folder: Path, mark: Mark | None) -> Iterator[Point]:
    for line in read_evaluations(folder):
        if is_beyond(line.step, line.time, mark):
            yield Point(line.step, line.time, of_evaluation(line))


def _is_evaluation(point: Point) -> bool:
    return any(name.startswith(EVALUATION_CURVES) for name in point.values)


def _time(point: Point) -> float:
    return point.time
