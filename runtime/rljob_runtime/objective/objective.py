"""What a job maximises, with the functions of its own that it names."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_api.algorithm import Algorithm
from rljob_runtime.objective.advantages import Estimator, estimator
from rljob_runtime.objective.own import Own
from rljob_runtime.objective.own_loss import own_loss_of


@dataclass(frozen=True)
class Objective:
    """A job's advantages and losses."""

    algorithm: Algorithm
    estimate: Estimator
    own_loss: Own | None
    """The function of `policyLoss.custom`."""

    @staticmethod
    def of(algorithm: Algorithm, search_path: Sequence[Path] = ()) -> "Objective":
        """That of a manifest; functions of the job's own are looked for first in the folders of
        `search_path`. Raises `FunctionLoadError`."""
        return Objective(algorithm, estimator(algorithm, search_path), own_loss_of(algorithm, search_path))
