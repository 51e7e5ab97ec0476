"""Which loggers a job has, and what a package that is missing is told as."""

from pathlib import Path

import pytest

from rljob_api.loggers import Loggers
from rljob_runtime.manifest import logger_packages
from rljob_runtime.trace.loggers.forwarder import close_all
from rljob_runtime.trace.loggers.open import open_loggers

ALL = {"wandb": {"project": "p"}, "mlflow": {"experiment": "e"}, "webhook": {"url": "http://127.0.0.1:9/"}}


def test_none_by_default(tmp_path: Path) -> None:
    assert open_loggers(Loggers(), "job", tmp_path) == []


def test_each_that_is_set_and_nothing_is_reached_before_there_are_metrics(tmp_path: Path) -> None:
    found = open_loggers(Loggers.model_validate(ALL), "job", tmp_path)
    close_all(found, 30.0)
    assert [each.name for each in found] == ["wandb", "mlflow", "webhook"]
    assert [(each.failures, each.lost) for each in found] == [(0, 0)] * 3
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        logger_packages.importlib.util, "find_spec", lambda name: None if name == "mlflow" else object()
    )
    assert [str(each) for each in logger_packages.check_loggers(Loggers.model_validate(ALL))] == [
        "spec.training.loggers.mlflow: the package mlflow is not installed: pip install 'rljob[mlflow]'."
    ]
    assert list(logger_packages.check_loggers(Loggers())) == []
