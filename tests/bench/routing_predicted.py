"""What the simulator says of a run's generation: the constants of its engines are fitted to a run that was
made, the lengths are those that were forced."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from rljob_api import RLJob
from rljob_runtime.data.length_trace import LENGTHS_FILE, read_length_trace
from rljob_runtime.routing.choose import policy_of
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import GroupRequest, RequestKey
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.assumptions import Assumptions
from rljob_runtime.simulate.job import simulate_job
from rljob_runtime.simulate.site import Site
from rljob_runtime.trace.forecast.run_fit import fit_run
from rljob_runtime.trace.forecast.workloads import recorded

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Generation:
    """When the groups of a job with bound 0 were begun and complete, in seconds: [steps, prompts]."""

    begun: Times
    ended: Times

    def after(self, steps: int) -> "Generation":
        """Without the first steps."""
        return Generation(self.begun[steps:], self.ended[steps:])

    @property
    def seconds(self) -> Times:
        """Of each step, from its first request to its last token: training is no part of it."""
        seconds: Times = self.ended.max(axis=1) - self.begun.min(axis=1)
        return seconds

    @property
    def p99(self) -> float:
        """Of what groups take from the begin of their step. Not from their own begin: who begins groups late
        would gain by that."""
        return float(np.percentile(self.ended - self.begun.min(axis=1, keepdims=True), 99))


def measured(run: Path, prompts: int) -> Generation:
    """Of a run, with so many prompts a step."""
    trace = read_length_trace(run / LENGTHS_FILE)
    begun, ended = trace.begun.min(axis=1), (trace.begun + trace.seconds).max(axis=1)
    return Generation(begun.reshape(-1, prompts), ended.reshape(-1, prompts))


class _Recording(Router):
    """Keeps when groups were dispatched, and when they were complete."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.begun: dict[int, float] = {}
        self.ended: dict[int, float] = {}

    def dispatch(self, group: GroupRequest, now: float) -> None:
        self.begun[group.uid] = now
        super().dispatch(group, now)

    def finished(self, key: RequestKey, tokens: int, now: float) -> None:
        self.ended[key.uid] = now
        super().finished(key, tokens, now)


def fitted(run: Path) -> Assumptions:
    """What `rljob trace fit` says of a run."""
    print(said := fit_run(run), flush=True)
    return Assumptions.model_validate(yaml.safe_load(said))


def predicted(
    job: Mapping[str, Any], assumptions: Assumptions, lengths: Path, policy: Policy | None = None
) -> Generation:
    """Of a job under these assumptions, with the lengths of a trace and its own policy, or the one given."""
    spec = RLJob.model_validate(dict(job)).spec
    steps = spec.training.schedule.total_steps
    assert steps is not None
    site = Site(spec, assumptions, steps)
    router = _Recording(policy or policy_of(spec))
    work = recorded(read_length_trace(lengths))(site, 0)
    simulate_job(work, site.shapes(), site.physics(), router, site.job())
    shape = (steps, spec.training.groups_per_step)
    begun, ended = (
        np.array([times[uid] for uid in range(site.groups)]).reshape(shape)
        for times in (router.begun, router.ended)
    )
    return Generation(begun, ended)
