"""Jobs in which what ended first misleads about what is to come, beside a quicker heavy pool: by length they
take no longer than by least in flight."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from rljob_runtime.groups.staleness import Bound
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.job import JobModel, simulate_job
from rljob_runtime.simulate.measured_plans import MeasuredPlans
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.scheduler import Scheduler
from rljob_runtime.simulate.workload import Workload
from tests.support.simulated.routed import faster

CAP = 1024
STEP = 0.01
"""Seconds of a step of no request on a fast engine."""


@dataclass(frozen=True)
class Case:
    """Jobs of one kind."""

    kind: str
    """Of lengths: begin short, where the first quarter of the prompts has short responses; of two kinds,
    where a response is short or long, as likely as its prompt has it; in halves, where of each prompt every
    second response is short; of two peaks, where four of five responses to a prompt are as long as it has it,
    to within a few percent."""
    engines: tuple[int, int]
    """Fast and heavy ones."""
    speed: float
    """Of a heavy engine, in fast ones."""
    places: tuple[int, int]
    """Of an engine of either pool."""
    kv_tokens: tuple[int, int]
    """The same."""
    groups: int
    samples: int
    mean: int
    """Tokens of a response."""
    prefill: float
    """Of a token, in steps of no request."""
    prompt: int
    """Tokens."""
    train: float
    """Of a step, in seconds of a response of the mean length alone."""
    steps: int = 4
    bound: int = 1
    masks: bool = False
    per_request: float = 0.01
    """Of a step for each request, in steps of no request."""

    def work(self, seed: int) -> Workload:
        r, count = np.random.default_rng((3, seed)), self.steps * self.groups
        by_prompt, own = r.standard_normal((count, 1)), r.standard_normal((count, self.samples))
        middle = math.log(self.mean)
        match self.kind:
            case "begin short":
                logs = middle + 0.3 * own - 1.5 * (np.arange(count)[:, None] < count // 4)
            case "of two kinds":
                short = r.random(own.shape) < 0.5 - 0.3 * np.sign(by_prompt)
                logs = np.where(short, middle - 1.2 + 0.4 * own, middle + 0.8 + 0.1 * own)
            case "of two peaks":
                long = (by_prompt > 0) == (r.random(own.shape) < 0.8)
                logs = np.log(np.where(long, self.mean * 2, self.mean / 4)) + 0.04 * own
            case _:
                long = np.arange(self.samples) % 2
                logs = np.where(long, np.log(r.uniform(CAP / 3, CAP, own.shape)), 3.0 + 0.5 * own)
        lengths = np.clip(np.rint(np.exp(logs)), 1, CAP).astype(np.int64)
        return Workload(lengths, np.full(count, self.prompt), np.arange(count))

    def seconds(self, scheduler: Scheduler, seed: int) -> float:
        cost = StepCost(STEP, self.per_request * STEP, 2e-8, self.prefill * STEP)
        one = EngineShape("fast", self.places[0], self.kv_tokens[0], cost)
        other = EngineShape("heavy", self.places[1], self.kv_tokens[1], faster(cost, self.speed))
        alone = STEP * self.mean
        bound = Bound(self.bound, self.groups, masks=self.masks)
        model = JobModel(bound, self.steps, self.train * alone, sync_seconds=0.02 * alone)
        shapes = [one] * self.engines[0] + [other] * self.engines[1]
        return simulate_job(self.work(seed), shapes, Physics(report_seconds=alone / 8), scheduler, model).wall

    def ratio(self, measured: bool = False, jobs: int = 4) -> float:
        """Times as fast as least in flight, all jobs together."""

        def policy() -> Adaptive:
            return Adaptive(CAP, waits=not self.masks, groups_per_step=self.groups)

        base = sum(self.seconds(Router(Policy()), seed) for seed in range(jobs))
        make = MeasuredPlans if measured else Router
        return base / sum(self.seconds(make(policy()), seed) for seed in range(jobs))


CASES = {
    "the heavy pool is not kept from groups that might begin": Case(
        "of two kinds", (1, 3), 3, (16, 4), (21_872, 65_616), 14, 2, 328, 0.34, 128, 0.05,
        steps=6, masks=True,
    ),
    "also for groups that are not awaited": Case(
        "begin short", (1, 2), 3, (32, 32), (13_197, 13_197), 6, 16, 120, 0.556, 16, 3.0,
        bound=2, per_request=0.02,
    ),
    "what has no token does not move for what its siblings were": Case(
        "in halves", (1, 3), 3, (32, 32), (10_813, 10_813), 24, 4, 154, 0.488, 128, 3.0,
        steps=3, bound=0, per_request=0.0,
    ),
    "nor where they tell little": Case(
        "of two kinds", (1, 2), 4, (32, 32), (6488, 3244), 7, 8, 41, 0.2, 128, 0.3, per_request=0.005,
    ),
    "nothing is expected beyond the longest peak": Case(
        "of two peaks", (2, 2), 4, (16, 4), (2703, 1351), 26, 2, 46, 0.203, 128, 0.05,
        steps=6, bound=0, per_request=0.005,
    ),
    "nor where few groups tell of it, and prefill is dear": Case(
        "of two peaks", (1, 1), 4, (16, 4), (10_752, 4032), 10, 2, 272, 0.5, 128, 0.05,
        steps=3, per_request=0.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_kind_of_jobs_takes_longer(case: Case) -> None:
    assert case.ratio() > 0.99
