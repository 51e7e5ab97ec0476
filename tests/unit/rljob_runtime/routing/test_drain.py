"""When an engine will have finished: against a simulation step by step."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.drain import Load, drain_seconds
from rljob_runtime.routing.requests import EngineShape
from tests.support.simulated.routed import COST, shape_of


def simulated(engine: EngineShape, loads: list[Load]) -> float:
    """Every step of every request; what does not fit waits, the shortest first."""
    waiting = [[load.remaining, load.kv_tokens] for load in loads for _ in range(int(load.number))]
    running: list[list[float]] = []
    seconds = 0.0
    while waiting or running:
        while waiting and len(running) < engine.limit:
            running.append(waiting.pop(0))
        seconds += engine.cost.step(len(running), sum(kv for _, kv in running))
        for each in running:
            each[0] -= 1
            each[1] += 1
        running = [each for each in running if each[0] > 0]
    return seconds


def loads_of(requests: list[tuple[int, int, int]]) -> list[Load]:
    """From number, remaining and KV tokens."""
    return sorted((Load(*each) for each in requests), key=lambda load: load.remaining)


requests = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 60), st.integers(0, 500)), max_size=8)
gears = st.sampled_from([(), (2, 8)])
costs = st.builds(
    StepCost, st.floats(0.001, 0.1), st.floats(0, 0.01), st.floats(0, 1e-4), st.just(1e-3), gears
)


@given(requests, costs)
def test_what_fits_is_predicted_step_by_step(requests: list[tuple[int, int, int]], cost: StepCost) -> None:
    engine, loads = shape_of(cost, 64, None), loads_of(requests)
    found, exact = drain_seconds(engine, loads), simulated(engine, loads)
    # The cache is taken to grow within a step: half a token of each request that runs, in each step.
    steps = max((load.remaining for load in loads), default=0.0)
    slack = 0.5 * cost.per_kv_token * sum(load.number for load in loads) * steps
    assert exact * (1 - 1e-9) <= found <= (exact + slack) * (1 + 1e-9)


def test_an_engine_with_nothing_to_do_has_finished() -> None:
    assert drain_seconds(shape_of(COST, 4, 100), []) == 0.0


@pytest.mark.parametrize(("number", "limit"), [(1, 4), (3, 4), (7, 4)])
def test_what_waits_is_prefilled_while_the_others_stand_still(number: int, limit: int) -> None:
    engine = shape_of(StepCost(0.01, 0.001, per_prefill_token=1e-3), limit, None)
    there, waits = [Load(number, 50, 20)], [Load(number, 50, 20, 20)]
    assert drain_seconds(engine, waits) == pytest.approx(drain_seconds(engine, there) + number * 20 * 1e-3)


@pytest.mark.parametrize("number", range(1, 40))
def test_what_does_not_fit_runs_in_turn(number: int) -> None:
    """Requests of one length on an engine of 4: as many rounds as are needed, or a part of one less where the
    last round is not full."""
    engine, loads = shape_of(StepCost(0.01, 0.001), 4, None), [Load(number, 50, 0)]
    found, exact = drain_seconds(engine, loads), simulated(engine, loads)
    assert found == pytest.approx(max(1.0, number / 4) * 50 * engine.cost.step(min(4, number)))
    assert 0.7 * exact < found <= exact * (1 + 1e-9)


@given(requests.filter(lambda some: sum(each[0] for each in some) > 4), costs)
def test_in_turn_it_is_within_a_factor_of_the_simulation(
    requests: list[tuple[int, int, int]], cost: StepCost
) -> None:
    """Placement in waves idles at its end: at most one request's time is missing."""
    engine, loads = shape_of(cost._replace(per_kv_token=0.0), 4, None), loads_of(requests)
    exact = simulated(engine, loads)
    longest = loads[-1].remaining * engine.cost.step(4)
    assert exact - longest <= drain_seconds(engine, loads) * (1 + 1e-9)
    assert drain_seconds(engine, loads) <= exact + longest


@pytest.mark.parametrize(
    ("kv_tokens", "batch"), [(None, 8), (8 * 110, 8), (8 * 100 - 1, 799 / 110), (220, 2), (100, 1)]
)
def test_a_full_cache_makes_the_batch_smaller(kv_tokens: int | None, batch: float) -> None:
    """Eight requests with 100 tokens each, and 20 to come: on average they hold 110 while they run."""
    engine = shape_of(StepCost(0.01), 8, kv_tokens)
    seconds = drain_seconds(engine, [Load(8, 20, 100)])
    assert seconds == pytest.approx(max(8 / batch, 1) * 20 * 0.01)


def test_a_batch_in_turn_reads_the_cache_of_all_that_run() -> None:
    engine = shape_of(StepCost(0.0, 0.0, 1.0), 2, None)
    assert drain_seconds(engine, [Load(4, 10, 100)]) == pytest.approx(20 * 2 * 105)


def test_it_lasts_at_least_as_long_as_the_longest() -> None:
    engine = shape_of(StepCost(1.0), 2, None)
    assert drain_seconds(engine, [Load(2, 1, 0), Load(1, 100, 0)]) == 100.0


def test_parts_of_requests_run_in_whole_batches() -> None:
    engine = shape_of(StepCost(0.0, 1.0), 8, None)
    assert drain_seconds(engine, [Load(0.5, 10, 0), Load(1.0, 20, 0)]) == 10 * 2 + 10 * 1


def test_one_that_should_have_ended_costs_nothing_more() -> None:
    engine = shape_of(StepCost(1.0), 8, None)
    assert drain_seconds(engine, [Load(1, -5, 10), Load(1, 10, 10)]) == 10.0
    cached = shape_of(StepCost(0.0, 0.0, 1.0), 8, None)
    assert drain_seconds(cached, [Load(1, 0, 500), Load(1, 2, 10)]) == 2 * 11.0


@given(requests, costs, st.integers(0, 7))
def test_one_more_request_never_makes_it_earlier(
    requests: list[tuple[int, int, int]], cost: StepCost, kv: int
) -> None:
    engine = shape_of(cost, 64, None)
    ends = [
        drain_seconds(engine, loads_of(some)) for some in itertools.accumulate([[each] for each in requests])
    ]
    assert all(before <= after * (1 + 1e-9) for before, after in itertools.pairwise(ends))
