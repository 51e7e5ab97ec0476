"""What each step achieved: `metrics.jsonl` in the run's folder, and TensorBoard scalars beside it.

Guarantees:
- one whole line per trained step; a line of a step supersedes earlier lines of that step, and a resume at
  step n supersedes every line of steps >= n that stands before it, in the file and in TensorBoard;
- a value that is not finite is written as null, never as invalid JSON.

A line is {"step": int, "time": s since the epoch, ...values}; a resume is {"resumed": int, "time": s}.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rljob_runtime.trace.events import append_line

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
    """Lines that were cut off or are no JSON objects."""


class MetricsLog:
    """Writes a run's metrics."""

    def __init__(
        self, run_folder: Path, resumed_at: int | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """`resumed_at`: first step to come when the run goes on from a checkpoint, None for a new run."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._path = run_folder / METRICS_FILE
        self._clock = clock
        self._board = EventFileWriter(str(run_folder / TENSORBOARD_FOLDER))
        if resumed_at is not None:
            now = clock()
            append_line(self._path, msgspec.json.encode({"resumed": resumed_at, "time": now}))
            self._supersede(resumed_at, now)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Record a step (from 0). Numbers, texts and dicts are kept; numbers also go to TensorBoard, those
        in a dict as `name/key`."""
        now = self._clock()
        plain = {name: _finite(value) for name, value in values.items()}
        append_line(self._path, msgspec.json.encode({**plain, "step": step, "time": now}))
        self._scalars(step, now, scalars(plain))

    def close(self) -> None:
        """Write out what TensorBoard's writer holds."""
        self._board.close()

    def _scalars(self, step: int, now: float, found: Mapping[str, float]) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in found.items()]
        summary = summary_pb2.Summary(value=values)
        self._board.add_event(event_pb2.Event(wall_time=now, step=step, summary=summary))

    def _supersede(self, step: int, now: float) -> None:
        """Tell TensorBoard that the run starts again at `step`; it drops what it has from there on."""
        from tensorboard.compat.proto import event_pb2

        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._board.add_event(event_pb2.Event(wall_time=now, step=step, session_log=start))


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
        if isinstance(row.get("resumed"), int):
            resume = Resume(row["resumed"], float(row.get("time", math.nan)))
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
