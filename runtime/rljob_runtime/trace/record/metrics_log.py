"""What each step achieved: `metrics.jsonl` in the run's folder, and TensorBoard scalars beside it.

Guarantees:
- every line of the file is one step's row, steps ascend, and no step has two: where training goes back to an
  earlier step, the rows of the steps that are trained again are cut off the file, and TensorBoard is told to
  drop their points. So the file can be read as it is, by `pandas.read_json(path, lines=True)` for example;
- a row is appended whole, in one write; a kill or a full disk leaves a part of the last line at most, which
  readers skip and the next start cuts off;
- a value that is not finite is written as null, never as invalid JSON;
- a row that cannot be written raises; TensorBoard's copy that cannot be written ends with one warning.

A row is {"step": int, "time": s since the epoch, ...values}. When training began, and began again, stands in
`starts.jsonl` (`start_log.py`).
"""

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rljob_runtime.trace.record.event_log import append_line
from rljob_runtime.trace.record.start_log import Cause, Start, append_start, read_starts

_log = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"

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


class _Head(msgspec.Struct):
    """What is looked at of a row that may be cut off."""

    step: int
    time: float
    """Seconds since the epoch."""


class MetricsSink(Protocol):
    """A logger beside TensorBoard."""

    def send(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Points of a step, by the tags of their curves; `time` in seconds since the epoch. Waits for
        nothing."""
        ...


class _TensorBoardFile:
    """An event file of TensorBoard's, written as it goes."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._clock = clock
        self._folder = folder
        self._records: Any = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads its files in the order of their names.
            # The second number is for two starts within a second.
            number = f"{int(time.time()):010d}.{len(os.listdir(folder)):04d}"
            file = folder / f"events.out.tfevents.{number}.{socket.gethostname()}.{os.getpid()}"
            self._records = RecordWriter(file.open("xb"))
        except OSError as error:
            self._give_up(error)
        # The first record of an event file. From version 2 on points are superseded by a record of their own
        # (`supersede`), not by any step that goes back.
        self.add(file_version="brain.Event:2")

    def scalars(self, step: int, found: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in found.items()]
        self.add(step=step, summary=Summary(value=values))

    def texts(self, step: int, found: Mapping[str, str]) -> None:
        """Add a text, in Markdown, to each list of texts."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        values = [
            Summary.Value(
                tag=tag, metadata=about, tensor=TensorProto(dtype=DT_STRING, string_val=[text.encode()])
            )
            for tag, text in found.items()
        ]
        self.add(step=step, summary=Summary(value=values))

    def supersede(self, step: int) -> None:
        """The run starts again at `step`: TensorBoard drops what it has from there on."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self.add(step=step, session_log=SessionLog(status=SessionLog.START))

    def add(self, **event: Any) -> None:
        """Write an `Event` of these fields."""
        from tensorboard.compat.proto.event_pb2 import Event

        if self._records is None:
            return
        try:
            self._records.write(Event(wall_time=self._clock(), **event).SerializeToString())
            self._records.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Everything is written by now."""
        if self._records is not None:
            self._records.close()
            self._records = None

    def _give_up(self, error: OSError) -> None:
        _log.warning(
            "nothing more is written for TensorBoard to %s (%s); metrics.jsonl has it all",
            self._folder, error.strerror,
        )  # fmt: skip
        self._records = None


class MetricsLog:
    """Writes a run's metrics. `begin` comes before the first `write`."""

    def __init__(
        self,
        run_folder: Path,
        clock: Callable[[], float] = time.time,
        loggers: Sequence[MetricsSink] = (),
    ) -> None:
        """`loggers`: where points of TensorBoard's curves go too."""
        self._loggers = loggers
        self._folder = run_folder
        self._path = run_folder / METRICS_FILE
        self._clock = clock
        self._tensorboard = _TensorBoardFile(run_folder / TENSORBOARD_FOLDER, clock)

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
                self._clock(), step, interruption.cause, interruption.why, interruption.time, again.rows
            )
        # First the record: a kill between the two leaves rows that the next start drops.
        append_start(self._folder, start)
        # Also without a row to drop: an unfinished last line goes too.
        if again.whole_bytes is not None:
            os.truncate(self._path, again.whole_bytes)
        # Also for a new run: TensorBoard takes the first such mark as the beginning, and drops points at
        # later ones only.
        self._tensorboard.supersede(step)
        return start

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Record a step (from 0). Numbers, texts and dicts are kept; numbers also go to TensorBoard and
        the loggers, those in a dict as `name/key`."""
        plain = {name: _finite(value) for name, value in values.items()}
        append_line(self._path, msgspec.json.encode({**plain, "step": step, "time": self._clock()}))
        self.curves(step, scalars(plain))

    def curves(self, step: int, values: Mapping[str, float]) -> None:
        """Add points to curves of TensorBoard and the loggers alone, by their tags."""
        self._tensorboard.scalars(step, values)
        for logger in self._loggers:
            logger.send(step, self._clock(), values)

    def show(self, step: int, texts: Mapping[str, str]) -> None:
        """Add texts of what the model says, in Markdown, to TensorBoard alone, as `says/NAME`."""
        self._tensorboard.texts(step, {f"says/{name}": text for name, text in texts.items()})

    def close(self) -> None:
        """Close TensorBoard's file."""
        self._tensorboard.close()


@dataclass(frozen=True)
class Superseded:
    """The end of a metrics file, from the first row of a step that is trained again."""

    rows: int = 0
    """Rows of such steps."""
    last_time: float | None = None
    """When the newest row of the file was written, seconds since the epoch; None where it has none."""
    whole_bytes: int | None = None
    """Size of the file without them and without an unfinished last line; None where there is no file."""


def rows_from(path: Path, step: int) -> Superseded:
    """What is to be cut off where training begins at `step`. Rows stand in order of steps, so that it is the
    end of the file."""
    rows, offset, last_time, cut = 0, 0, None, None
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return Superseded()
    with file:
        for line in file:
            # Cut off by a kill: it is not counted as whole, and goes.
            if not line.endswith(b"\n"):
                break
            try:
                head = msgspec.json.decode(line, type=_Head)
            except msgspec.DecodeError:
                # A line that was cut off earlier: it is left where it is, readers skip it.
                head = None
            if head is not None:
                last_time = head.time
                if head.step >= step:
                    rows += 1
                    cut = offset if cut is None else cut
            offset += len(line)
    return Superseded(rows, last_time, offset if cut is None else cut)


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among a step's values, under their TensorBoard tags."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if name in ("step", "time"):
            continue
        if isinstance(value, Mapping):
            numbers = {f"{name}/{key}": item for key, item in value.items()}
        else:
            numbers = {_TAGS.get(name, f"other/{name}"): value}
        found.update({tag: float(item) for tag, item in numbers.items() if isinstance(item, (int, float))})
    return found


def read_metrics(path: Path) -> Metrics:
    """The metrics at `path`; empty where there is no file."""
    metrics = Metrics()
    rows: dict[int, dict[str, Any]] = {}
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return metrics
    for line in lines:
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            metrics.unreadable += 1
            continue
        if isinstance(row.get("step"), int) and isinstance(row.get("time"), (int, float)):
            rows[row["step"]] = row
        else:
            metrics.unreadable += 1
    metrics.rows = [rows[step] for step in sorted(rows)]
    return metrics


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
