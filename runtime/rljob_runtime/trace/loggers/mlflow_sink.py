"""Metrics for MLflow, by its own client."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from rljob_api.loggers import MlflowLogger
from rljob_runtime.trace.loggers.answers import Answer, answer_of, what_to_do
from rljob_runtime.trace.loggers.backlog import Point
from rljob_runtime.trace.loggers.forwarder import LoggerDenied, PointsRefused, in_words
from rljob_runtime.trace.loggers.mlflow_names import mlflow_name

_A_REQUEST = 1000
"""Most values in a request, by MLflow's REST API."""
_KEYS = "MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD,"


class MlflowSink:
    """Implements `Sink`."""

    def __init__(
        self,
        config: MlflowLogger,
        name: str,
        run_id: str | None,
        timeout_seconds: float,
        began: Callable[[str], None],
    ) -> None:
        """Goes on with the run `run_id`, or begins one, and tells `began` its id. Raises `LoggerDenied`, and
        what else MLflow raises."""
        # The client reads them at each request; a person's own settings count.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(max(1, round(timeout_seconds))))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        from mlflow import MlflowClient

        self._client: Any = MlflowClient(config.tracking_uri)
        with _answers():
            if run_id is None:
                there = config.experiment
                found = self._client.get_experiment_by_name(there)
                experiment = found.experiment_id if found else self._client.create_experiment(there)
                run = self._client.create_run(experiment, run_name=config.run_name or name)
                run_id = str(run.info.run_id)
                began(run_id)
            else:
                self._client.update_run(run_id, status="RUNNING")
        self._run_id = run_id

    def log(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = (
            Metric(mlflow_name(name), value, round(point.time * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        )
        while batch := list(islice(metrics, _A_REQUEST)):
            with _answers(points=True):
                self._client.log_batch(self._run_id, metrics=batch)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


@contextmanager
def _answers(points: bool = False) -> Iterator[None]:
    """Raises `LoggerDenied` in the place of MLflow's error that means it, and, where points are sent,
    `PointsRefused`."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        status = error.get_http_status_code()
        answer = answer_of(status)
        if answer is Answer.DENIED:
            to_do = what_to_do(status, _KEYS, "training.loggers.mlflow (or restore the run there)")
            raise LoggerDenied(f"{in_words(error)}: {to_do}") from error
        if points and answer is Answer.REFUSED:
            raise PointsRefused(in_words(error)) from error
        raise
