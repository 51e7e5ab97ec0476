"""What the sinks of W&B and MLflow ask of their libraries. These are optional packages: here modules of their
names record the calls. tests/runtime/test_loggers.py has the libraries themselves, where they are installed.
"""

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rljob_api.loggers import Loggers
from rljob_runtime.trace.loggers.forwarder import Forwarder, close_all
from rljob_runtime.trace.loggers.open import open_loggers

SECONDS = 30.0


class CommError(Exception):
    """What wandb raises about an answer of its server, and where there was none in time."""


class AuthenticationError(CommError):
    """About the key that it is given."""


class UsageError(Exception):
    """About what it is given else."""


class Wandb(ModuleType):
    """`wandb` and a run of its own, as far as the sink knows them."""

    def __init__(self, logged_in: bool = True, fails: Sequence[Exception] = ()) -> None:
        """`fails`: how its first attempts to begin a run fail."""
        super().__init__("wandb")
        self.logged_in = logged_in
        self.fails = list(fails)
        self.in_use = False
        self.logged = threading.Event()
        self.calls: list[tuple[str, Any]] = []

    def login(self, *, prompt: bool, verify: bool) -> bool:
        assert not prompt, "it would ask at the terminal"
        assert not verify, "it would call a server that is away a wrong key"
        return self.logged_in

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def init(self, **given: Any) -> "Wandb":
        if self.in_use:
            raise RuntimeError("the run is in use")
        if self.fails:
            self.in_use = True
            raise self.fails.pop(0)
        self.calls.append(("init", given))
        return self

    def teardown(self) -> None:
        self.in_use = False

    def define_metric(self, name: str, **given: Any) -> None:
        self.calls.append(("define_metric", (name, given)))

    def log(self, values: dict[str, float]) -> None:
        if "bad" in values:
            raise ValueError("no bad")
        self.calls.append(("log", values))
        self.logged.set()

    def finish(self) -> None:
        self.calls.append(("finish", None))


@pytest.fixture(autouse=True)
def wandb_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = ModuleType("wandb.errors")
    for error in (CommError, AuthenticationError, UsageError):
        monkeypatch.setattr(errors, error.__name__, error, raising=False)
    monkeypatch.setitem(sys.modules, "wandb.errors", errors)


class MlflowException(Exception):
    """What MLflow's client raises, with the status that it stands for."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self._status = status

    def get_http_status_code(self) -> int:
        return self._status


class Mlflow(ModuleType):
    """`mlflow` and its client, as far as the sink knows them."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.calls: list[tuple[str, Any]] = []
        self.refused: dict[str, int] = {}
        """Statuses of answers to batches that begin with these names, and about such experiments."""
        self.MlflowClient = lambda uri: self._called("client", uri, self)

    def _called(self, name: str, given: Any, answer: Any = None) -> Any:
        self.calls.append((name, given))
        return answer

    def get_experiment_by_name(self, name: str) -> Any:
        if (status := self.refused.get(name)) is not None:
            raise MlflowException(f"no {name}", status)
        return SimpleNamespace(experiment_id="7") if name == "known" else None

    def create_experiment(self, name: str) -> Any:
        return self._called("create_experiment", name, "8")

    def create_run(self, experiment: str, *, run_name: str) -> Any:
        run = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
        return self._called("create_run", (experiment, run_name), run)

    def update_run(self, run_id: str, *, status: str) -> None:
        self._called("update_run", (run_id, status))

    def log_batch(self, run_id: str, *, metrics: list[Any]) -> None:
        if (status := self.refused.get(metrics[0][0])) is not None:
            raise MlflowException(f"no {metrics[0][0]}", status)
        self._called("log_batch", (run_id, metrics))

    def set_terminated(self, run_id: str) -> None:
        self._called("set_terminated", run_id)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Mlflow:
    module, entities, exceptions = Mlflow(), ModuleType("mlflow.entities"), ModuleType("mlflow.exceptions")
    monkeypatch.setattr(entities, "Metric", lambda *given: given, raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setattr(exceptions, "MlflowException", MlflowException, raising=False)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", exceptions)
    # The sink sets what is not set; this takes it back.
    for name in ("MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return module


def run(folder: Path, loggers: dict[str, Any], values: list[dict[str, float]]) -> Forwarder:
    """Steps with these values, sent to the only logger, which is closed."""
    config = Loggers.model_validate({**loggers, "timeoutSeconds": SECONDS})
    (logger,) = open_loggers(config, "math", folder)
    for step, each in enumerate(values):
        logger.send(step, 1000.0 + step, each)
    close_all([logger], SECONDS)
    return logger


@pytest.mark.parametrize(("mode", "resume"), [("online", "allow"), ("offline", None)])
def test_wandb_gets_each_step_of_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, resume: str | None
) -> None:
    ids = []
    for _ in range(2):
        wandb = Wandb()
        monkeypatch.setitem(sys.modules, "wandb", wandb)
        config = {"wandb": {"project": "p", "entity": "team", "mode": mode}}
        logger = run(tmp_path, config, [{"train/loss": 0.5}, {"train/loss": 0.25}])
        assert (logger.failures, logger.lost) == (0, 0)
        (_, begun), *rest = wandb.calls
        ids.append(begun.pop("id"))
        assert begun.pop("settings")["silent"]
        assert begun == {
            "project": "p", "entity": "team", "name": "math", "resume": resume, "mode": mode,
            "dir": str(tmp_path),
        }  # fmt: skip
        assert rest == [
            ("define_metric", ("step", {"hidden": True})),
            ("define_metric", ("*", {"step_metric": "step"})),
            ("log", {"train/loss": 0.5, "step": 0}),
            ("log", {"train/loss": 0.25, "step": 1}),
            ("finish", None),
        ]
    assert ids[0] == ids[1] == (tmp_path / "loggers" / "wandb").read_text()


def test_wandb_without_a_key_loses_all_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Wandb(logged_in=False)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    logger = run(tmp_path, {"wandb": {"project": "p"}}, [{}, {}])
    assert (logger.lost, wandb.calls) == (2, [])
    assert logger.denial == "there is no key: set WANDB_API_KEY in the driver's environment"


@pytest.mark.parametrize(
    ("error", "to_do"),
    [
        (AuthenticationError("too short"), "it does not take the job's key: set WANDB_API_KEY"),
        (CommError("resume: returned error 401: {}"), "it does not take the job's key: set WANDB_API_KEY"),
        (CommError("resume: returned error 404: {}"), "correct training.loggers.wandb, and resume"),
        (CommError("permission denied"), "may write there and training.loggers.wandb names"),
        (UsageError("no such project name"), "correct training.loggers.wandb, and resume"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wandb_that_does_not_begin_the_run_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, to_do: str
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Wandb(fails=[error]))
    logger = run(tmp_path, {"wandb": {"project": "p"}}, [{}])
    assert logger.denial is not None
    assert logger.denial.startswith(f"{type(error).__name__}: {error}: ") and to_do in logger.denial


@pytest.mark.parametrize("error", [CommError("deadline exceeded, HTTP 503"), OSError("its process is gone")])
def test_wandb_that_is_away_is_asked_again_soon_and_begins_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("rljob_runtime.trace.loggers.backlog._FIRST_PAUSE", 0.0)
    wandb = Wandb(fails=[error])
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    config = Loggers.model_validate({"wandb": {"project": "p"}, "timeoutSeconds": SECONDS})
    (logger,) = open_loggers(config, "math", tmp_path)
    logger.send(0, 1000.0, {"a": 1.0})
    assert wandb.logged.wait(SECONDS)
    close_all([logger], SECONDS)
    assert (logger.failures, logger.lost, logger.denial) == (1, 0, None)


@pytest.mark.parametrize(
    ("experiment", "made", "number"),
    [("known", [], "7"), ("new", [("create_experiment", "new")], "8")],
)
def test_mlflow_gets_all_values_and_the_run_goes_on(
    tmp_path: Path, mlflow: Mlflow, experiment: str, made: list[Any], number: str
) -> None:
    config = {"mlflow": {"trackingUri": "http://127.0.0.1:9", "experiment": experiment, "runName": "third"}}
    run(tmp_path, config, [{"a": 1.0, "b": 2.0}])
    assert mlflow.calls == [
        ("client", "http://127.0.0.1:9"),
        *made,
        ("create_run", (number, "third")),
        ("log_batch", ("r1", [("a", 1.0, 1_000_000, 0), ("b", 2.0, 1_000_000, 0)])),
        ("set_terminated", "r1"),
    ]
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "30"
    mlflow.calls.clear()
    run(tmp_path, config, [{"a": 3.0}])
    assert mlflow.calls[1] == ("update_run", ("r1", "RUNNING"))
    assert [name for name, _ in mlflow.calls] == ["client", "update_run", "log_batch", "set_terminated"]


def test_mlflow_gets_names_that_it_takes(tmp_path: Path, mlflow: Mlflow) -> None:
    run(tmp_path, {"mlflow": {"experiment": "known"}}, [{"evaluation/gsm8k/pass@4": 0.5, "train/loss": 1.0}])
    (batch,) = [given[1] for name, given in mlflow.calls if name == "log_batch"]
    assert [name for name, *_ in batch] == ["evaluation/gsm8k/pass_at_4", "train/loss"]


def test_mlflow_takes_no_more_values_at_a_time_than_its_server_does(tmp_path: Path, mlflow: Mlflow) -> None:
    run(tmp_path, {"mlflow": {"experiment": "known"}}, [{f"m{n}": float(n) for n in range(2500)}])
    batches = [given[1] for name, given in mlflow.calls if name == "log_batch"]
    assert [len(batch) for batch in batches] == [1000, 1000, 500]
    assert [name for batch in batches for name, *_ in batch] == [f"m{n}" for n in range(2500)]


def test_what_mlflow_refuses_is_left_out_and_the_others_arrive(tmp_path: Path, mlflow: Mlflow) -> None:
    mlflow.refused = {"bad": 400}
    logger = run(tmp_path, {"mlflow": {"experiment": "known"}}, [{"bad": 1.0}, {"a": 1.0}, {"bad": 2.0}])
    assert [given[1][0][0] for name, given in mlflow.calls if name == "log_batch"] == ["a"]
    assert (logger.lost, logger.refused, logger.trouble) == (2, 2, None)
    assert logger.refusal == "MlflowException: no bad"


@pytest.mark.parametrize(
    ("status", "to_do"), [(401, "MLFLOW_TRACKING_TOKEN"), (404, "training.loggers.mlflow")]
)
@pytest.mark.parametrize("at", ["begin", "log"])
def test_mlflow_that_does_not_take_the_key_is_told_with_what_to_do(
    tmp_path: Path, mlflow: Mlflow, at: str, status: int, to_do: str
) -> None:
    mlflow.refused = {"known" if at == "begin" else "a": status}
    logger = run(tmp_path, {"mlflow": {"experiment": "known"}}, [{"a": 1.0}])
    assert (logger.lost, logger.refused) == (1, 0)
    assert logger.denial is not None and logger.denial == logger.trouble
    assert logger.denial.startswith("MlflowException: no ") and to_do in logger.denial


@pytest.mark.parametrize("status", [429, 500, 503])
def test_mlflow_that_is_away_refuses_nothing(tmp_path: Path, mlflow: Mlflow, status: int) -> None:
    mlflow.refused = {"a": status}
    logger = run(tmp_path, {"mlflow": {"experiment": "known"}}, [{"a": 1.0}])
    assert (logger.lost, logger.refused, logger.trouble) == (1, 0, "MlflowException: no a")


def test_what_wandb_refuses_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    logger = run(tmp_path, {"wandb": {"project": "p"}}, [{"bad": 1.0}, {"a": 1.0}])
    assert [given for name, given in wandb.calls if name == "log"] == [{"a": 1.0, "step": 1}]
    assert (logger.lost, logger.refused, logger.refusal) == (1, 1, "ValueError: no bad")
