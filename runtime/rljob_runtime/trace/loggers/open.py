"""The loggers of a job.

Guarantees: a job that goes on in its folder goes on with its runs at the loggers, and first sends what its
files have and they have not got; nothing is imported or reached before a step is there to send, and then by
the loggers' own threads.
"""

import os
import uuid
from collections.abc import Callable
from pathlib import Path

from rljob_api.loggers import Loggers
from rljob_runtime.trace.loggers.forwarder import Forwarder, Sink
from rljob_runtime.trace.loggers.mlflow_sink import MlflowSink
from rljob_runtime.trace.loggers.reached import ReachedFile, StepsThere, points_beyond, replace_file
from rljob_runtime.trace.loggers.wandb_sink import WandbSink
from rljob_runtime.trace.loggers.webhook import WebhookSink
from rljob_runtime.trace.record.unsent_log import Unsent, append_unsent

RUNS_FOLDER = "loggers"
"""In the run's folder: for each logger a file with the id of its run there, and `NAME.sent`, which says how
far it has got."""


def open_loggers(loggers: Loggers, job: str, folder: Path) -> list[Forwarder]:
    """One for each that is set; `job`: its name, `folder`: of its run. Raises `OSError`."""
    runs, timeout = folder / RUNS_FOLDER, loggers.timeout_seconds
    wandb, mlflow, webhook = loggers.wandb, loggers.mlflow, loggers.webhook
    found = []

    def to_wandb() -> Sink:
        assert wandb is not None
        run_id = _read(runs / "wandb")
        if run_id is None:
            run_id = uuid.uuid4().hex[:12]
            _write(runs / "wandb", run_id)
        return WandbSink(wandb, job, run_id, folder)

    def to_mlflow() -> Sink:
        assert mlflow is not None
        path = runs / "mlflow"
        return MlflowSink(mlflow, job, _read(path), timeout, lambda run_id: _write(path, run_id))

    def to_webhook() -> Sink:
        assert webhook is not None
        return WebhookSink(webhook.url, job, os.environ.get("RLJOB_WEBHOOK_TOKEN"), timeout)

    for name, config, connect in (
        ("wandb", wandb, to_wandb), ("mlflow", mlflow, to_mlflow), ("webhook", webhook, to_webhook),
    ):  # fmt: skip
        if config is not None:
            found.append(_opened(name, connect, loggers.buffer_steps, folder))
    return found


def _opened(name: str, connect: Callable[[], Sink], buffer: int, folder: Path) -> Forwarder:
    """The logger, with what it has not got of the run in `folder` as the first that it is sent."""
    file = ReachedFile(folder / RUNS_FOLDER / f"{name}.sent")
    _tell_lost(name, file, folder)
    # Before the thread begins, which goes on with the file.
    reached = file.reached
    forwarder = Forwarder(name, connect, buffer, file)
    steps_there = StepsThere(reached)
    for point in points_beyond(folder, reached):
        steps_there.add(point)
        forwarder.send(*point)
    if steps_there.gone:
        forwarder.are_gone(steps_there.gone)
    return forwarder


def _tell_lost(name: str, file: ReachedFile, folder: Path) -> None:
    """Record what a driver left out and could not record, for it was killed."""
    reached = file.reached
    if reached.lost:
        append_unsent(folder, Unsent(name, reached.time, reached.lost, reached.why))
        file.told()


def _read(path: Path) -> str | None:
    try:
        return path.read_text() or None
    except FileNotFoundError:
        return None


def _write(path: Path, run_id: str) -> None:
    replace_file(path, run_id.encode())
