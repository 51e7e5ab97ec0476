"""Pool sizes that are proposed, and when none are."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rljob_api import RLJob
from rljob_api.job import Spec
from rljob_runtime.data.length_trace import LengthTrace, TraceHeader
from rljob_runtime.simulate.assumptions import Assumptions, Engines
from rljob_runtime.simulate.site import Site, Sizes
from rljob_runtime.simulate.workload import LengthModel
from rljob_runtime.trace.forecast.measured_run import MeasuredRun
from rljob_runtime.trace.forecast.sizing import (
    Proposal,
    Unfinished,
    best_of,
    knows_caches,
    propose,
    told,
    worth,
)
from rljob_runtime.trace.forecast.workloads import recorded
from tests.support.jobs import job

CAP, PROMPTS, SAMPLES = 200, 4, 4


def spec(trainer: int, fast: int, heavy: int = 0, **pools: Any) -> Spec:
    changes = {
        "accelerator": "nvidia",
        "pools.trainer.replicas": trainer,
        "pools.fastRollout.replicas": fast,
        "pools.heavyRollout": {"replicas": heavy, **pools},
        "training.rollout": {
            "maxResponseTokens": CAP, "samplesPerPrompt": SAMPLES, "maxRunningRequests": 8,
        },
        "training.schedule": {"totalSteps": 100, "promptsPerBatch": PROMPTS},
    }  # fmt: skip
    return RLJob.model_validate(job(changes)).spec


def trace(groups: int = 200) -> LengthTrace:
    lengths = LengthModel(40, CAP, 0.5, 0.5).draw(groups, SAMPLES, 3).lengths.astype(np.int32)
    unknown = np.full(lengths.shape, np.nan)
    return LengthTrace(
        TraceHeader(SAMPLES, CAP), np.arange(groups), np.arange(groups), np.full(groups, 8, np.int32),
        lengths, unknown, unknown, np.zeros(lengths.shape, np.int64), 0, 0, 0, 0,
    )  # fmt: skip


def assumptions(trainer_seconds: float) -> Assumptions:
    """Engines whose steps take twice as long beside ten others; a trainer whose work is by the token."""
    return Assumptions.model_validate(
        {
            "engines": {
                "fast": {"fixedSeconds": 0.01, "secondsPerRequest": 1e-3, "graphs": [], "kvTokens": None}
            },
            "trainer": {"secondsPerStep": 0.0, "secondsPerToken": trainer_seconds / (PROMPTS * SAMPLES * 48)},
            "weightSyncSeconds": 0.01,
        }
    )


def measured(of: Spec, trainer_seconds: float = 0.05, off: float = 1.0, **known: bool) -> MeasuredRun:
    """A run of which the simulator is right, but for a factor."""
    found = assumptions(trainer_seconds)
    rate = Site(of, found, 12).run(recorded(trace())(Site(of, found, 12), 0)).samples_per_second
    made = MeasuredRun(found, trace(), rate * off, knows_fast=True, knows_heavy=True, knows_trainer=True)
    return replace(made, **known)


def never() -> Callable[[], float]:
    """A clock that stands still."""
    return lambda: 0.0


def test_accelerators_go_where_the_time_goes() -> None:
    """Four trainers that have next to nothing to do, and two engines that everybody waits for. The gain is
    what the simulator gains on workloads with which nothing was searched."""
    of = spec(4, 2)
    run = measured(of)
    found = propose(of, run, 10.0, now=never())
    assert isinstance(found, Proposal)
    assert found.now == Sizes(4, 2, 0) and found.then.trainer == 1
    assert found.then.fast + found.then.heavy == 5
    assert found.accelerators == found.then.accelerators(of) == 6
    assert found.simulated == pytest.approx(found.measured)
    draw, site = recorded(run.trace), Site(of, run.assumptions, 12)
    gains = []
    for seed in range(1, found.workloads + 1):
        rates = [
            replace(site, spec=sizes.applied(of)).run(draw(site, seed)).samples_per_second
            for sizes in (found.now, found.then)
        ]
        gains.append(rates[1] / rates[0] - 1)
    assert found.workloads == 6 and np.mean(gains) > 0.15
    assert found.gain.mean == pytest.approx(np.mean(gains))
    assert found.gain.deviation == pytest.approx(np.std(gains, ddof=1) / 6**0.5)


def test_sizes_that_are_best_already_are_left_alone() -> None:
    of = spec(1, 5)
    assert propose(of, measured(of), 10.0, now=never()) is None


@pytest.mark.parametrize("off", [0.8, 1.25])
def test_nothing_is_proposed_where_the_simulator_is_off(off: float) -> None:
    of = spec(4, 2)
    assert propose(of, measured(of, off=off), 10.0, now=never()) is None


@pytest.mark.parametrize("knows_fast", [True, False])
def test_a_job_without_a_fast_pool_is_proposed_sizes_of_which_the_run_tells(knows_fast: bool) -> None:
    of = spec(4, 0, 2, acceleratorsPerWorker=1 if knows_fast else 2)
    found = propose(of, measured(of, knows_fast=knows_fast), 10.0, now=never())
    assert isinstance(found, Proposal) and found.now == Sizes(4, 0, 2)
    assert found.then.trainer < 4 and (knows_fast or not found.then.fast)


def test_a_trainer_of_which_nothing_is_known_stays_as_it_is() -> None:
    of = spec(4, 2)
    found = propose(of, measured(of, knows_trainer=False), 10.0, now=never())
    assert found is None or (isinstance(found, Proposal) and found.then.trainer == 4)


def test_a_job_whose_policy_goes_by_the_bounds_of_its_heavy_pool_keeps_it() -> None:
    of = spec(4, 2, maxReplicas=3)
    run = measured(of)
    found = propose(of, run, 10.0, now=never())
    assert isinstance(found, Proposal) and found.simulated == pytest.approx(found.measured)


@pytest.mark.parametrize("turns", [0, 500, 2500])
def test_time_that_does_not_suffice_ends_it(turns: int) -> None:
    """The clock is looked at with each decision, and says that the time is over after so many."""
    of = spec(4, 2)
    run = measured(of)
    looks = itertools.count()
    found = propose(of, run, seconds=1.0, now=lambda: 0.0 if next(looks) <= turns else 5.0)
    assert found == Unfinished(6)
    assert next(looks) < turns + 50


@pytest.mark.parametrize(
    ("gains", "misfit", "clear"),
    [
        ([0.20, 0.21, 0.19], 0.02, True),
        ([0.20, 0.21, 0.19], 0.25, False),
        ([0.06, 0.06, 0.06], 0.0, True),
        ([0.04, 0.04, 0.04], 0.0, False),
        ([0.50, -0.30, 0.40], 0.0, False),
        ([-0.2, -0.2, -0.2], 0.0, False),
    ],
    ids=["clear", "less than the simulator is off", "small", "too small", "noise", "a loss"],
)
def test_what_gain_is_worth_telling(gains: list[float], misfit: float, clear: bool) -> None:
    assert worth(gains, misfit) is clear


NOW = Sizes(2, 4, 0)


@pytest.mark.parametrize(
    ("tried", "best"),
    [
        ({}, None),
        ({Sizes(1, 5, 0): 104.0}, None),
        ({Sizes(1, 5, 0): 110.0, Sizes(3, 3, 0): 120.0}, Sizes(3, 3, 0)),
    ],
    ids=["none tried", "no better", "the best"],
)
def test_which_sizes_are_looked_at_closer(tried: dict[Sizes, float], best: Sizes | None) -> None:
    assert best_of({NOW: 100.0, **tried}, NOW) == best


@pytest.mark.parametrize(
    ("other", "known", "expected"),
    [
        (Sizes(4, 2, 0), {}, True),
        (Sizes(5, 1, 0), {}, False),
        (Sizes(1, 5, 0), {"knows_trainer": False}, False),
        (Sizes(2, 2, 2), {"knows_trainer": False}, True),
        (Sizes(1, 3, 2), {"knows_heavy": False}, False),
        (Sizes(1, 5, 0), {"knows_heavy": False}, True),
        (Sizes(1, 1, 4), {"knows_fast": False}, False),
        (Sizes(2, 0, 4), {"knows_fast": False}, True),
    ],
)
def test_a_run_tells_of_sizes_whose_costs_it_measured(
    other: Sizes, known: dict[str, bool], expected: bool
) -> None:
    assert told(measured(spec(2, 4), **known), NOW, other) is expected


@pytest.mark.parametrize(
    ("engines", "tried", "expected"),
    [
        ({"fast": {"kvTokens": 9}}, NOW, True),
        ({"fast": {"kvTokens": None}}, NOW, False),
        ({"fast": {"kvTokens": None}}, Sizes(2, 0, 2), False),
        ({"fast": {"kvTokens": None}, "heavy": {"kvTokens": 9}}, Sizes(2, 0, 2), True),
        ({"heavy": {"kvTokens": None}}, Sizes(2, 2, 2), False),
    ],
)
def test_caches_are_known_where_engines_of_the_pools_that_are_used_said_so(
    engines: dict[str, Any], tried: Sizes, expected: bool
) -> None:
    assert knows_caches(Engines.model_validate(engines), [tried, tried]) is expected
