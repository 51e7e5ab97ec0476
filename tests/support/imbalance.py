"""How uneven loads and plans are."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rljob_runtime.parallel.micro_batches import MicroBatch


def imbalance(loads: ArrayLike) -> float:
    """The largest load by the mean one: how much longer all wait for the slowest than with even loads; 1
    where there is no load."""
    values = np.asarray(loads, dtype=np.float64)
    mean = float(values.mean()) if values.size else 0.0
    return float(values.max()) / mean if mean > 0 else 1.0


def planned_imbalance(
    plan: Sequence[Sequence[MicroBatch]], costs: Sequence[float], in_step: bool = True
) -> float:
    """How much longer the plan takes than with the same costs in even loads, 1 at best: by the objective that
    `in_step` names. `costs` are those of the samples alone."""
    values = np.asarray(costs, dtype=np.float64)
    totals = [[float(values[list(batch)].sum()) for batch in rank] for rank in plan]
    if not in_step:
        return imbalance([sum(rank) for rank in totals])
    even = sum(map(sum, totals)) / len(plan)
    return sum(map(max, zip(*totals, strict=True))) / even if even > 0 else 1.0
