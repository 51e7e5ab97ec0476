"""Constants of a decode step, found again in attempts of simulated engines that have them."""

import pytest

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.trace.forecast.engine_fit import Attempt, fit_engines
from tests.support.simulated.attempts import simulated_attempts

COST = StepCost(fixed=0.01, per_request=4e-4, per_kv_token=1e-6, per_prefill_token=2e-5)


def test_the_constants_that_made_the_attempts_are_found_again() -> None:
    fit = fit_engines(simulated_attempts(COST, engines=3, groups=120, seed=0))
    assert fit is not None
    assert fit.r_squared > 0.95
    assert fit.cost.fixed == pytest.approx(COST.fixed, rel=0.08)
    # What matters is a whole step: its parts share some of their effect.
    for running, kv in ((2, 1000), (8, 3000), (16, 8000)):
        assert fit.cost.step(running, kv) == pytest.approx(COST.step(running, kv), rel=0.05)


@pytest.mark.parametrize("admission", [0.0, 0.01, 0.1])
def test_what_a_step_with_a_prefill_takes_besides_is_found_again(admission: float) -> None:
    cost = StepCost(fixed=0.002, per_request=4e-5, per_kv_token=0.0, per_prefill_token=1e-6)
    fit = fit_engines(simulated_attempts(cost, engines=3, groups=120, seed=0, admission=admission))
    assert fit is not None
    assert fit.admission + 200 * fit.cost.per_prefill_token == pytest.approx(admission + 2e-4, rel=0.1)
    assert fit.admission == pytest.approx(admission, rel=0.2, abs=2e-4), "and not taken for that of tokens"
    assert fit.cost.step(16, 8000) == pytest.approx(cost.step(16, 8000), rel=0.05)


def test_one_engine_alone_runs_at_its_lowest_latency() -> None:
    attempts = [Attempt(100.0 * n, 100.0 * n + 10.0, 100, 0) for n in range(20)]
    fit = fit_engines([attempts])
    assert fit is not None
    assert fit.cost.step(1, 50) == pytest.approx(0.1, rel=1e-6)
    assert fit.attempts == 20


@pytest.mark.parametrize("engines", [[], [[]], [[Attempt(0.0, 1.0, 5, 5)]], [[Attempt(0.0, 1.0, 1, 5)] * 50]])
def test_too_few_attempts_fit_nothing(engines: list[list[Attempt]]) -> None:
    assert fit_engines(engines) is None


def test_an_engine_that_stood_idle_between_attempts_is_fitted_too() -> None:
    # Alone at 0.1 s a token, and two at 0.15 s each: a part for each request, and no fixed one by itself.
    alone = [Attempt(1000.0 * n, 1000.0 * n + 10.0, 100, 0) for n in range(8)]
    pairs = [Attempt(1000.0 * n + 500, 1000.0 * n + 515.0, 100, 0) for n in range(8) for _ in range(2)]
    fit = fit_engines([alone + pairs])
    assert fit is not None
    assert fit.cost.step(1, 50) == pytest.approx(0.1, rel=1e-3)
    assert fit.cost.step(2, 100) == pytest.approx(0.15, rel=1e-3)
