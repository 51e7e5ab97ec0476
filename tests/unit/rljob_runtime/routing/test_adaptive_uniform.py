"""Batches of uniform lengths beside faster engines, where moves are dear: none moves just before its end."""

import numpy as np

from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.batch import simulate_batch
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.workload import Workload
from tests.support.simulated.routed import faster

CAP = 512
COST = StepCost(0.03, 3e-5, 5.6e-8, 3.3e-3)
"""A move takes some twenty steps."""


def seconds(policy: Policy, seed: int) -> float:
    """Of 40 groups of 8 on nine engines, and on seven of the heavy pool."""
    lengths = np.random.default_rng(seed).integers(1, 220, (40, 8))
    work = Workload(lengths, np.full(40, 128), np.arange(40))
    fast = EngineShape("fast", 16, 7061, COST)
    heavy = EngineShape("heavy", 4, 7061, faster(COST, 2.0))
    return simulate_batch(work, [fast] * 9 + [heavy] * 7, Physics(report_seconds=0.165), Router(policy)).wall


def test_batches_take_no_longer_than_with_least_in_flight() -> None:
    base = sum(seconds(Policy(), seed) for seed in range(6))
    assert sum(seconds(Adaptive(CAP), seed) for seed in range(6)) <= base
