"""Loads what a job's objective has of its own, and calls it: losses and advantages.

Guarantees: whatever such a function raises becomes an `OwnFunctionFailed` that says where; no module beside
the manifest takes the place of one that this process imports later. Loads no torch by itself.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api.algorithm import OwnAdvantage, OwnLoss
from rljob_runtime.job_errors import OwnFunctionFailed
from rljob_runtime.own_functions import Call, OwnFunction, in_words, load_function

_LOSS = "algorithm.policyLoss.custom"
_ADVANTAGE = "algorithm.advantage.custom"
_CALLS = {
    _LOSS: Call(("the Tokens", "the log-probabilities that ratios are taken against"), f"{_LOSS}.arguments"),
    _ADVANTAGE: Call(("the groups of a step",), f"{_ADVANTAGE}.arguments"),
}


@dataclass(frozen=True)
class Own:
    """A function of the job's own, with its arguments bound."""

    field: str
    """The field below spec.training that names it."""
    path: str
    """`module:function`."""
    function: OwnFunction

    def __call__(self, *given: Any) -> Any:
        """What the function returns. Raises `OwnFunctionFailed`."""
        try:
            return self.function(*given)
        except Exception as error:
            raise self.failed(f"failed: {in_words(error)}") from error

    def failed(self, fault: str) -> OwnFunctionFailed:
        """The error that says so of this function."""
        return OwnFunctionFailed(f'"{self.path}" ({self.field}) {fault}')


def load_own(setting: OwnLoss | OwnAdvantage, search_path: Sequence[Path] = ()) -> Own:
    """The function that the setting names, looked for first in the folders of `search_path`. Raises
    `FunctionLoadError`."""
    field = _LOSS if isinstance(setting, OwnLoss) else _ADVANTAGE
    before = list(sys.path)
    try:
        function = load_function(setting.function, setting.arguments, search_path, _CALLS[field])
    finally:
        # Behind all others: it may still import its neighbours when it runs.
        sys.path[:] = [*before, *(folder for folder in sys.path if folder not in before)]
    return Own(field, setting.function, function)
