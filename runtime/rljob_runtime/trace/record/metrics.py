"""What each step achieved: `metrics.jsonl` in the run's folder, and TensorBoard scalars beside it.

Guarantees:
- one whole line per trained step; a line of a step supersedes earlier lines of that step, and a resume at
  step n supersedes every line of steps >= n that stands before it, in the file and in TensorBoard;
- a value that is not finite is written as null, never as invalid JSON;
- a line that cannot be written raises; TensorBoard's copy that cannot be written ends with one warning.

A line is {"step": int, "time": s since the epoch, ...values}; a resume is {"resumed": int, "time": s}.
"""

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rljob_runtime.trace.record.event_log import append_line

_log = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"

_TAGS = {
    "loss": "train/loss",
    "policy_loss": "train/policy_loss",
    "kl": "train/kl",
    "entropy": "train/entropy",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "clip_fraction": "train/clip_fraction",
    "importance_weight_mean": "train/importance_weight_mean",
    "parity_max": "train/parity_max",
    "parity_mean": "train/parity_mean",
    "reward_mean": "train/reward",
    "reward_std": "train/reward_std",
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
class Resume:
    """The job went on from a checkpoint."""

    step: int
    """First step that is trained again."""
    time: float
    """Seconds since the epoch."""


@dataclass
class Metrics:
    """A run's metrics, as read."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """The line that counts of each step, in order of steps."""
    resumes: list[Resume] = field(default_factory=list)
    unreadable: int = 0
    """Lines that were cut off, or are not what is written here."""


class _Board:
    """A file of TensorBoard's, written as it goes."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._clock = clock
        self._folder = folder
        self._records: Any = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads its files in the order of their names.
            number = f"{int(time.time()):010d}.{len(os.listdir(folder)):04d}"
            file = folder / f"events.out.tfevents.{number}.{socket.gethostname()}.{os.getpid()}"
            self._records = RecordWriter(file.open("xb"))
        except OSError as error:
            self._give_up(error)
        self.add(file_version="brain.Event:2")

    def scalars(self, step: int, found: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in found.items()]
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
    """Writes a run's metrics."""

    def __init__(
        self, run_folder: Path, resumed_at: int | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """`resumed_at`: first step to come when the run goes on from a checkpoint, None for a new run."""
        self._path = run_folder / METRICS_FILE
        self._clock = clock
        self._board = _Board(run_folder / TENSORBOARD_FOLDER, clock)
        if resumed_at is not None:
            append_line(self._path, msgspec.json.encode({"resumed": resumed_at, "time": clock()}))
            self._board.supersede(resumed_at)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Record a step (from 0). Numbers, texts and dicts are kept; numbers also go to TensorBoard, those
        in a dict as `name/key`."""
        plain = {name: _finite(value) for name, value in values.items()}
        append_line(self._path, msgspec.json.encode({**plain, "step": step, "time": self._clock()}))
        self._board.scalars(step, scalars(plain))

    def close(self) -> None:
        """Close TensorBoard's file."""
        self._board.close()


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
        if not isinstance(row.get("time"), (int, float)):
            metrics.unreadable += 1
        elif isinstance(row.get("resumed"), int):
            resume = Resume(row["resumed"], float(row["time"]))
            metrics.resumes.append(resume)
            rows = {step: kept for step, kept in rows.items() if step < resume.step}
        elif isinstance(row.get("step"), int):
            rows[row["step"]] = row
        else:
            metrics.unreadable += 1
    metrics.rows = [rows[step] for step in sorted(rows)]
    return metrics


def _finite(value: Any) -> Any:
    """`value` as plain JSON values; None for a number that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
