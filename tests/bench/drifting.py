"""Jobs whose lengths are other ones in each step than those before tell: for `routing_random`."""

import math
from dataclasses import dataclass

import numpy as np

from rljob_runtime.groups.staleness import Bound
from rljob_runtime.simulate.job import JobModel
from rljob_runtime.simulate.workload import Lengths, ToolWaits

KINDS = ("halved", "doubled", "inverted")


@dataclass(frozen=True)
class Drift:
    """How the lengths of a job change, and what its weight updates and tools take."""

    kind: str
    """halved, doubled: from step to step; inverted: prompts that were long in one step are short in the
    next."""
    sync_seconds: float
    """Of a weight update, after which the KV of what runs is computed again."""
    waits: ToolWaits | None

    def lengths(self, drawn: Lengths, steps: int, mu: float, cap: int) -> Lengths:
        """These lengths, in the order of the steps, with the drift. `mu`: the middle of their logarithms;
        the longest steps have them as they are."""
        step = (np.arange(len(drawn)) * steps // len(drawn))[:, None]
        logs = np.log(drawn)
        match self.kind:
            case "halved":
                logs -= math.log(2) * step
            case "doubled":
                logs -= math.log(2) * (steps - 1 - step)
            case "inverted":
                logs = np.where(step % 2, 2 * mu - logs, logs)
        drifted: Lengths = np.clip(np.rint(np.exp(logs)), 1, cap).astype(np.int64)
        return drifted

    def model(self, bound: Bound, steps: int, train: float) -> JobModel:
        """A job with such updates."""
        return JobModel(bound, steps, train, sync_seconds=self.sync_seconds, recompute_kv=True)
