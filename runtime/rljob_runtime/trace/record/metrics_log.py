"""What each step achieved: `metrics.jsonl` in the run's folder, and TensorBoard scalars beside it.

Guarantees:
- every line of the file is one step's row, steps ascend, and no step has two: where training goes back to an
  earlier step, the rows of the steps that are trained again are cut off the file, and TensorBoard is told to
  drop their points. So the file can be read as it is, by `pandas.read_json(path, lines=True)` for example;
- a row is appended whole, in one write; a kill or a full disk leaves a part of the last line at most, which
  readers skip and the next start cuts off;
- the file has `MOST_BYTES` at most: before it would have more, every second of its rows goes, of all but the
  newest quarter, again and again until it is half as large. So a long run keeps its newest steps all and
  older ones ever more thinly; a row before which others are gone says when the step before it ended;
- a value that is not finite is written as null, never as invalid JSON;
- a row that cannot be written raises; TensorBoard's copy that cannot be written ends with one warning.

A row is {"step": int, "time": s since the epoch, ...values}, and "began": s since the epoch where the row
before it is gone. When training began, and began again, stands in
`starts.jsonl` (`start_log.py`).
"""

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from rljob_runtime.net.messages import decode_typed
from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.record.event_log import LATEST, append_line
from rljob_runtime.trace.record.start_log import Cause, Start, append_start, read_starts
from rljob_runtime.trace.record.tensorboard_file import TENSORBOARD_FOLDER, TensorBoardFile
from rljob_runtime.trace.record.thinning import thinned_between
from rljob_runtime.trace.record.whole_lines import whole_lines

_log = logging.getLogger(__name__)
_row_decoder = msgspec.json.Decoder(dict[str, Any])

METRICS_FILE = "metrics.jsonl"
MOST_BYTES = 64 << 20
"""Most bytes of the file: one reads all of it at once."""

_LARGEST = 1e100
"""Of numbers up to this, squares can be summed; beyond it are those of a job that has come apart."""
_LAST_STEP = 2**53
"""What a float can hold."""

# TensorBoard groups curves by what stands before the slash.
_TAGS = {
    "loss": "train/loss",
    "policy_loss": "train/policy_loss",
    "kl": "train/kl",
    "teacher_kl": "train/teacher_kl",
    "entropy": "train/entropy",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "clip_fraction": "train/clip_fraction",
    "importance_weight_mean": "train/importance_weight_mean",
    "parity_max": "train/parity_max",
    "parity_mean": "train/parity_mean",
    "reward_mean": "train/reward",
    "reward_std": "train/reward_std",
    "reward_min": "reward/min",
    "reward_p10": "reward/p10",
    "reward_median": "reward/median",
    "reward_p90": "reward/p90",
    "reward_max": "reward/max",
    "equal_groups": "reward/equal_groups",
    "reward_values_failed": "data/reward_values_failed",
    "staleness_mean": "staleness/mean",
    "staleness_max": "staleness/max",
    "mixed_share": "staleness/mixed_share",
    "response_length_mean": "response_length/mean",
    "response_length_max": "response_length/max",
    "cut_off": "response_length/cut_off",
    "samples": "data/samples",
    "failed": "data/failed",
    "tokens": "data/tokens",
    "response_tokens": "data/response_tokens",
    "tokens_per_second": "perf/tokens_per_second",
    "queue_depth": "perf/queue_depth",
    "weight_version": "perf/weight_version",
    "step_seconds": "perf/step_seconds",
}


@dataclass(frozen=True)
class Interruption:
    """What ended a stretch of training that is to go on."""

    cause: Cause
    time: float | None
    """Seconds since the epoch; None where it is not known."""
    why: str = ""
    """What broke, in words."""


@dataclass
class Metrics:
    """A run's metrics, as read."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """One of each step, in order of steps."""
    unreadable: int = 0
    """Lines that were cut off, or are no rows."""

    @property
    def gone(self) -> int:
        """Steps whose rows were taken out of the file, to keep it small."""
        thinned = any("began" in row for row in self.rows)
        return int(self.rows[-1]["step"]) + 1 - len(self.rows) if thinned else 0


class _Head(msgspec.Struct):
    """What is looked at of a row that may be cut off."""

    step: int
    time: float
    """Seconds since the epoch."""
    began: float | None = None
    """The time of the row before it, which is gone; None where that is there."""


_head_decoder = msgspec.json.Decoder(_Head)


class MetricsSink(Protocol):
    """A logger beside TensorBoard."""

    def send(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Points at so many steps done, by the tags of their curves; `time` in seconds since the epoch. Waits
        for nothing."""
        ...


class MetricsLog:
    """Writes a run's metrics. `begin` comes before the first `write`."""

    def __init__(
        self,
        run_folder: Path,
        clock: Callable[[], float] = time.time,
        loggers: Sequence[MetricsSink] = (),
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """`loggers`: where points of TensorBoard's curves go too."""
        self._loggers = loggers
        self._most_bytes = most_bytes
        self._thin_from = most_bytes
        """Bytes of the file from which on it is thinned out: more, where that failed."""
        self._folder = run_folder
        self._path = run_folder / METRICS_FILE
        self._clock = clock
        self._tensorboard = TensorBoardFile(run_folder / TENSORBOARD_FOLDER, clock)

    def begin(self, step: int, interruption: Interruption | None = None) -> Start:
        """Training begins, or goes on after `interruption`, with `step`: rows of that step and later ones are
        dropped, and what happened is recorded. Without an `interruption` it is what the folder says: a new
        run, or one that goes on. Raises `OSError`."""
        again = rows_from(self._path, step)
        earlier = bool(read_starts(self._folder)) or again.last_time is not None
        if interruption is None and earlier:
            interruption = Interruption("resumed", again.last_time)
        if interruption is None:
            start = Start(self._clock(), step, "new")
        else:
            start = Start(
                self._clock(), step, interruption.cause, interruption.why, interruption.time, again.steps
            )
        # First the record: a kill between the two leaves rows that the next start drops.
        append_start(self._folder, start)
        # Also without a row to drop: an unfinished last line goes too.
        if again.whole_bytes is not None:
            os.truncate(self._path, again.whole_bytes)
        # Also for a new run: TensorBoard takes the first such mark as the beginning, and drops points at
        # later ones only.
        self._tensorboard.supersede(step_number(step))
        return start

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Record a step (from 0). Numbers, texts and dicts are kept; numbers also go to TensorBoard and
        the loggers, as curves over the steps done, those in a dict as `name/key`."""
        plain = {name: _finite(value) for name, value in values.items()}
        text = msgspec.json.encode({**plain, "step": step, "time": self._clock()})
        self._make_room(len(text) + 1)
        append_line(self._path, text)
        self.curves(step_number(step), scalars(plain))

    def curves(self, done: int, values: Mapping[str, float]) -> None:
        """Add points to curves of TensorBoard and the loggers alone, by their tags, at so many steps done:
        what a step says stands where an evaluation of the weights that it made does."""
        self._tensorboard.scalars(done, values)
        for logger in self._loggers:
            logger.send(done, self._clock(), values)

    def show(self, step: int, texts: Mapping[str, str]) -> None:
        """Add texts of what the model says in a step (from 0), in Markdown, to TensorBoard alone, as
        `says/NAME`."""
        self._tensorboard.texts(step_number(step), {f"says/{name}": text for name, text in texts.items()})

    def close(self) -> None:
        """Close TensorBoard's file."""
        self._tensorboard.close()

    def _make_room(self, more: int) -> None:
        size = (self._path.stat().st_size if self._path.exists() else 0) + more
        if size <= self._thin_from:
            return
        try:
            _thin_out(self._path, self._most_bytes)
            self._thin_from = self._most_bytes
        except OSError as error:
            # What is to be written may still fit; if not, that raises.
            _log.warning("%s grows beyond %d bytes: %s", self._path, self._most_bytes, error.strerror)
            self._thin_from = size + self._most_bytes // 8


def _thin_out(path: Path, most: int) -> None:
    """Have the file take half of `most` bytes. Raises `OSError`."""
    heads = [(head, len(line)) for head, line in whole_lines(path, _head_decoder) if head is not None]
    stays = thinned_between(
        np.array([size for _, size in heads], np.int64), most // 2, first=0, newest=most // 4
    )
    rows = ((head, line) for head, line in whole_lines(path, _head_decoder) if head is not None)
    shorter, gone = path.with_suffix(".tmp"), None
    try:
        with shorter.open("wb") as file:
            for (head, line), stay in zip(rows, stays, strict=True):
                if stay and gone is not None and head.began is None:
                    line = b'%b,"began":%b}\n' % (line.rstrip()[:-1], msgspec.json.encode(gone))
                if stay:
                    file.write(line)
                gone = None if stay else head.time
        # By renaming: a kill leaves the file as it was, or as it is to be.
        shorter.replace(path)
    finally:
        shorter.unlink(missing_ok=True)


@dataclass(frozen=True)
class Superseded:
    """The end of a metrics file, from the first row of a step that is trained again."""

    steps: int = 0
    """Such steps."""
    last_time: float | None = None
    """When the newest row of the file was written, seconds since the epoch; None where it has none."""
    whole_bytes: int | None = None
    """Size of the file without them and without an unfinished last line; None where there is no file."""


def rows_from(path: Path, step: int) -> Superseded:
    """What is to be cut off where training begins at `step`. Rows stand in order of steps, so that it is the
    end of the file."""
    newest, offset, last_time, cut = step - 1, 0, None, None
    try:
        for head, line in whole_lines(path, _head_decoder):
            # A line without a head is left where it is: readers skip it.
            if head is not None:
                newest, last_time = head.step, head.time
                if head.step >= step and cut is None:
                    cut = offset
            offset += len(line)
    except FileNotFoundError:
        return Superseded()
    # Not the rows that are there: some may be gone.
    return Superseded(max(0, newest - step + 1), last_time, offset if cut is None else cut)


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among a step's values, under their TensorBoard tags."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if name in ("step", "time", "began"):
            continue
        if isinstance(value, Mapping):
            numbers = {f"{name}/{key}": item for key, item in value.items()}
        else:
            numbers = {_TAGS.get(name, f"other/{name}"): value}
        found.update({tag: float(item) for tag, item in numbers.items() if isinstance(item, (int, float))})
    return found


def read_metrics(path: Path) -> Metrics:
    """The metrics at `path`; empty where there is no file. A number that no figure can be made of is None, as
    one is that is not finite."""
    metrics = Metrics()
    rows: dict[int, dict[str, Any]] = {}
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return metrics
    for line in lines:
        try:
            row = decode_typed(_row_decoder, line)
        except msgspec.DecodeError:
            metrics.unreadable += 1
            continue
        step, when = row.get("step"), row.get("time")
        if (
            isinstance(step, int)
            and abs(step) <= _LAST_STEP
            and isinstance(when, (int, float))
            and 0 <= when <= LATEST
        ):
            rows[step] = {name: _usable(value) for name, value in row.items()}
        else:
            metrics.unreadable += 1
    metrics.rows = [rows[step] for step in sorted(rows)]
    return metrics


def _usable(value: Any) -> Any:
    """A value of a row, without numbers beyond `_LARGEST`."""
    if isinstance(value, dict):
        return {key: None if _is_beyond(item) else item for key, item in value.items()}
    return None if _is_beyond(value) else value


def _is_beyond(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) > _LARGEST


def _finite(value: Any) -> Any:
    """`value` as plain JSON values; None for a number that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    # A scalar of numpy or torch.
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
