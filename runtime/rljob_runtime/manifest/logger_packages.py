"""Whether the packages that a job's loggers need are installed."""

import importlib.util
from collections.abc import Iterator

from rljob_api.errors import Problem
from rljob_api.loggers import Loggers


def check_loggers(loggers: Loggers) -> Iterator[Problem]:
    """The loggers whose package is not installed here."""
    for field in ("wandb", "mlflow"):
        if getattr(loggers, field) is not None and importlib.util.find_spec(field) is None:
            yield Problem(
                ("spec", "training", "loggers", field),
                f"the package {field} is not installed: pip install 'rljob[{field}]'",
            )
