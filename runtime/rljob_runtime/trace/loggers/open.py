"""The loggers of a job.

Guarantees: a job that goes on in its folder goes on with its runs at the loggers; nothing is imported or
reached before a first step is there to send, and then by the loggers' own threads.
"""

import os
import uuid
from pathlib import Path

from rljob_api.loggers import Loggers
from rljob_runtime.trace.loggers.forwarder import Forwarder, Sink
from rljob_runtime.trace.loggers.mlflow_sink import MlflowSink
from rljob_runtime.trace.loggers.wandb_sink import WandbSink
from rljob_runtime.trace.loggers.webhook import WebhookSink

RUNS_FOLDER = "loggers"
"""In the run's folder: a file for each logger, with the id of its run there."""


def open_loggers(loggers: Loggers, job: str, folder: Path) -> list[Forwarder]:
    """One for each that is set; `job`: its name, `folder`: of its run."""
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
            found.append(Forwarder(name, connect, loggers.buffer_steps))
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text() or None
    except FileNotFoundError:
        return None


def _write(path: Path, run_id: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(run_id)
