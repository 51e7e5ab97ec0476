"""The loggers' own libraries, without their servers: W&B offline, or with one that refuses all, and
MLflow in a folder. They are optional (docs/loggers.md); where one is not installed, its test is skipped and
says so."""

import importlib.util
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rljob_api.loggers import Loggers
from rljob_runtime.trace.loggers.forwarder import Forwarder, close_all
from rljob_runtime.trace.loggers.open import open_loggers

SECONDS = 60.0


def needs(package: str) -> pytest.MarkDecorator:
    there = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not there, reason=f"needs {package}: pip install 'rljob[{package}]'")


def log(folder: Path, loggers: dict[str, object], steps: range) -> Forwarder:
    """A run of these steps; its only logger, which is closed."""
    config = Loggers.model_validate({**loggers, "timeoutSeconds": SECONDS})
    (logger,) = open_loggers(config, "math", folder)
    for step in steps:
        values = {"train/loss": step / 2, "source_reward/code": 1.0, "evaluation/gsm8k/pass@1": 0.5}
        logger.send(step, 1000.0 + step, values)
    close_all([logger], SECONDS)
    assert (logger.failures, logger.lost) == (0, 0)
    return logger


def written(file: Path, parts: Sequence[bytes]) -> bool:
    """Whether all of `parts` come to stand in the file."""
    deadline = time.monotonic() + SECONDS
    while not all(part in file.read_bytes() for part in parts):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@needs("wandb")
def test_wandb_writes_offline_runs_of_one_id(tmp_path: Path) -> None:
    loggers = {"wandb": {"project": "p", "mode": "offline"}}
    log(tmp_path, loggers, range(3))
    log(tmp_path, loggers, range(2, 5))
    first, second = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert first.name == second.name == f"run-{(tmp_path / 'loggers' / 'wandb').read_text()}.wandb"
    for file, values in ((first, (b"0.5",)), (second, (b"1.5",))):
        # wandb's own process writes it, and may be a little later than the end of the run.
        assert written(file, (b"train/loss", b"source_reward/code", *values))
    assert b"1.5" not in first.read_bytes()


@needs("mlflow")
def test_mlflow_goes_on_with_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A store without a server, which MLflow has given up for anything but this.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path}/mlruns"
    loggers = {"mlflow": {"trackingUri": uri, "experiment": "maths", "runName": "third"}}
    log(tmp_path, loggers, range(3))
    log(tmp_path, loggers, range(2, 5))
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("maths").experiment_id])
    assert (run.info.run_name, run.info.status) == ("third", "FINISHED")
    found = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(each.step, each.value, each.timestamp) for each in found] == [
        (step, step / 2, (1000 + step) * 1000) for step in (0, 1, 2, 2, 3, 4)
    ]
    assert {each.value for each in client.get_metric_history(run.info.run_id, "source_reward/code")} == {1.0}
    found = client.get_metric_history(run.info.run_id, "evaluation/gsm8k/pass_at_1")
    assert [each.value for each in found] == [0.5] * 6


@needs("mlflow")
def test_what_mlflow_refuses_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path}/mlruns"
    config = Loggers.model_validate({"mlflow": {"trackingUri": uri, "experiment": "maths"}})
    (logger,) = open_loggers(config, "math", tmp_path)
    for step in range(3):
        # It takes no times before 1970.
        logger.send(step, -1.0 if step == 1 else 1000.0, {"train/loss": 1.0})
    close_all([logger], SECONDS)
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("maths").experiment_id])
    assert {each.step for each in client.get_metric_history(run.info.run_id, "train/loss")} == {0, 2}
    assert (logger.lost, logger.refused, logger.trouble) == (1, 1, None)
    assert logger.refusal is not None and "timestamp" in logger.refusal


@needs("wandb")
def test_wandb_without_a_key_is_a_failure_and_no_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (logger,) = open_loggers(Loggers.model_validate({"wandb": {"project": "p"}}), "math", tmp_path)
    logger.send(0, 0.0, {"train/loss": 1.0})
    close_all([logger], SECONDS)
    assert logger.lost == 1 and logger.failures >= 1
    assert "wandb: metrics are not sent for now: there is no key: set WANDB_API_KEY" in caplog.text


@needs("wandb")
@pytest.mark.parametrize("status", [401, 403])
def test_wandb_that_refuses_the_run_is_told_with_what_to_do_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    import wandb

    with server_that_answers(status) as address:
        monkeypatch.setenv("WANDB_BASE_URL", address)
        wandb.teardown()  # It goes by the address that it first had.
        for _ in range(2):  # Of the first attempt nothing is left that holds up the second one.
            config = Loggers.model_validate({"wandb": {"project": "p"}, "timeoutSeconds": SECONDS})
            (logger,) = open_loggers(config, "math", tmp_path)
            logger.send(0, 0.0, {"train/loss": 1.0})
            close_all([logger], SECONDS)
            assert (logger.lost, logger.failures) == (1, 1)
            assert logger.denial is not None and f"error {status}" in logger.denial
            assert "it does not take the job's key: set WANDB_API_KEY" in logger.denial


@contextmanager
def server_that_answers(status: int) -> Iterator[str]:
    """Its address; every request gets this status."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(SECONDS)
