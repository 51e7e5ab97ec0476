"""Costs of a step from reports of progress: what was put in comes out."""

import math
import random
from collections.abc import Callable

import pytest

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.cost_fit import UNMEASURED, CostFit, MeasuredCosts

TRUTHS = {
    "all three": StepCost(0.008, 2e-5, 4.3e-8),
    "no slope by tokens": StepCost(0.01, 1e-4, 0.0),
    "nothing but the fixed part": StepCost(0.02, 0.0, 0.0),
    "by tokens alone": StepCost(0.005, 0.0, 1e-6),
}


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("name", TRUTHS)
def test_the_constants_of_a_step_are_found(name: str, noise: float) -> None:
    truth, rng, fit = TRUTHS[name], random.Random(7), CostFit()
    sizes = [(rng.randint(1, 256), rng.uniform(0, 700_000)) for _ in range(500)]
    for running, kv in sizes:
        fit.add(truth.step(running, kv) * rng.gauss(1, noise), running, kv)
    found = fit.cost()
    assert found is not None
    each = sum(kv for _, kv in sizes) / sum(running for running, _ in sizes)
    assert found.per_prefill_token == pytest.approx(found.step(1, each) / 100, rel=0.01)
    for running, kv in [(1, 0), (1, 30_000), (64, 100_000), (256, 700_000)]:
        assert found.step(running, kv) == pytest.approx(truth.step(running, kv), rel=0.01 + noise)


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("share", [0.001, 0.006, 0.1, 0.5])
def test_what_a_prefilled_token_costs_is_found(share: float, noise: float) -> None:
    """As part of a step's fixed time. Most steps have none beside them; the prompts are of 100 to 4,000
    tokens."""
    truth, rng, fit = TRUTHS["all three"], random.Random(7), CostFit()
    token = share * truth.fixed
    for _ in range(1000):
        running, kv = rng.randint(1, 256), rng.uniform(0, 700_000)
        # Of 25 steps one in three intervals prefills a prompt.
        prefilled = rng.uniform(100, 4000) / 25 if rng.random() < 0.3 else 0.0
        seconds = (truth.step(running, kv) + token * prefilled) * rng.gauss(1, noise)
        fit.add(seconds, running, kv, prefilled)
    found = fit.cost()
    assert found is not None
    assert found.per_prefill_token == pytest.approx(token, rel=0.1 if noise == 0 or share > 0.001 else 0.5)
    assert found.step(64, 100_000) == pytest.approx(truth.step(64, 100_000), rel=0.01 + noise)


@pytest.mark.parametrize(
    ("prefilled", "least", "most"),
    [(0.0, 0.01, 0.01), (0.01, 0.008, 0.012), (0.2, 0.008, 0.06), (10.0, 0.08, 0.12)],
)
def test_what_is_assumed_of_prefill_gives_way_as_far_as_it_is_measured(
    prefilled: float, least: float, most: float
) -> None:
    """It takes a tenth of a step's fixed time, not the hundredth that is assumed; steps take 10 % more or
    less by chance. `prefilled`: tokens beside every second step."""
    rng, fit = random.Random(5), CostFit()
    for turn in range(200):
        each = prefilled * (turn % 2)
        fit.add(0.01 * (1 + 0.1 * each) * rng.gauss(1, 0.1), rng.randint(1, 64), 0, each)
    cost = fit.cost()
    assert cost is not None
    assert 0.999 * least <= cost.per_prefill_token / cost.fixed <= 1.001 * most


@pytest.mark.parametrize(
    ("told", "least", "most"),
    [(lambda rng: 0.0, 0.01, 0.01), (lambda rng: rng.uniform(0, 1e9), 0.0005, 0.0005)],
    ids=["nothing", "nonsense"],
)
def test_prefill_stays_within_bounds_whatever_engines_tell(
    told: Callable[[random.Random], float], least: float, most: float
) -> None:
    rng, fit = random.Random(5), CostFit()
    for _ in range(500):
        fit.add(0.01 * rng.gauss(1, 0.05), rng.randint(1, 64), 0, told(rng))
    cost = fit.cost()
    assert cost is not None and cost.fixed == pytest.approx(0.01, rel=0.05)
    assert least * 0.99 <= cost.per_prefill_token / cost.fixed <= most * 1.01


@pytest.mark.parametrize("fixed", [0.0, 1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("per_request", [1e-3, 1e-2])
def test_a_token_takes_up_to_a_step_of_one_request_however_little_of_it_is_fixed(
    fixed: float, per_request: float
) -> None:
    """Also where requests are all of one length, so that their time may be that of their tokens."""
    truth, rng, fit = StepCost(fixed, per_request), random.Random(5), CostFit()
    fit.tells = True
    for turn in range(400):
        running, prefilled = rng.randint(1, 8), 64.0 * (turn % 3 == 0)
        seconds = truth.step(running) + 0.9 * truth.step(1) * prefilled
        fit.add(seconds, running, 200 * running, prefilled)
    cost = fit.cost()
    assert cost is not None and not cost.assumed
    assert cost.per_prefill_token == pytest.approx(0.9 * truth.step(1), rel=0.05)
    assert cost.step(4, 800) == pytest.approx(truth.step(4), rel=0.05)


def test_what_moves_took_is_measured_in_steps_of_one_request() -> None:
    """A token takes half of one, of which a hundredth part is fixed."""
    truth, measured, now, done = StepCost(1e-4, 1e-2, 0.0), MeasuredCosts(), 0.0, 0
    for turn in range(1, 400):
        size = 2 + turn % 5
        name, tokens = f"moved {turn}", dict.fromkeys(keys(*range(size)), 0)
        measured.given(1, "fast", name, 100, now)
        done += 10
        now += 10 * truth.step(size + 1) + 100 * 0.5 * truth.step(1)
        measured.report(1, "fast", {**dict.fromkeys(tokens, done), name: 10}, 0.0, now)
        measured.ended(1, "fast", name)
        done += 10
        now += 10 * truth.step(size)
        measured.report(1, "fast", dict.fromkeys(tokens, done), 0.0, now)
    cost = measured.known("fast")
    assert cost is not None and not cost.assumed
    assert cost.per_prefill_token > 0.2 * truth.step(1)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_an_assumption_that_is_wrong_by_far_does_not_outweigh_what_is_measured(share: float) -> None:
    """Reports come every two or three tokens, so that a step is known to a quarter; one of 20 has a prompt of
    16 tokens beside it."""
    rng, fit = random.Random(5), CostFit()
    fit.tells = True
    for turn in range(400):
        prefilled = 16.0 * (turn % 20 == 0)
        seconds = 0.005 * (1 + share * prefilled) * rng.choice((0.75, 1.0, 1.25))
        fit.add(seconds, rng.randint(1, 16), 0, prefilled)
    cost = fit.cost()
    assert cost is not None and not cost.assumed
    assert cost.per_prefill_token == pytest.approx(share * 0.005, rel=0.2)


def test_what_one_pool_tells_of_prefill_is_assumed_of_another_one() -> None:
    """A token takes half a step of either. A response moves to the slow engine and tells it; of the quick one
    steps alone are known."""
    measured, now = MeasuredCosts(), 0.0
    steps = {("slow", 1): 0.01, ("quick", 2): 0.005}
    for turn in range(1, 101):
        now += 0.1
        for (pool, engine), step in steps.items():
            measured.report(engine, pool, {"a": round(now / step)}, 10.0, now)
        if turn == 40:
            before = {pool: measured.known(pool) for pool, _ in steps}
            measured.given(1, "slow", "moved", 200, now)
            now += 200 * 0.005
            measured.report(1, "slow", {"a": round(now / 0.01), "moved": 1}, 10.0, now + 0.01)
    for (pool, _), step in steps.items():
        first, last = before[pool], measured.known(pool)
        assert first is not None and first.per_prefill_token == pytest.approx(0.01 * step, rel=0.01)
        assert last is not None and 0.3 * step < last.per_prefill_token < 0.5 * step
        assert last.assumed == (pool == "quick"), "one move there is still to tell"


@pytest.mark.parametrize("lie", [0.0, 0.5, 2.0])
def test_one_engine_of_four_that_lies_about_prefill_does_not_decide_what_it_costs(lie: float) -> None:
    """It says that it has prefilled nothing, or half of what it has, or twice as much."""
    rng, fit = random.Random(5), CostFit()
    for turn in range(1000):
        prefilled = rng.uniform(100, 4000) / 25 if rng.random() < 0.3 else 0.0
        seconds = (0.01 + 0.0001 * prefilled) * rng.gauss(1, 0.05)
        fit.add(seconds, rng.randint(1, 64), 0, prefilled * (lie if turn % 4 == 0 else 1.0))
    cost = fit.cost()
    assert cost is not None and 0.005 < cost.per_prefill_token / cost.fixed < 0.02


@pytest.mark.parametrize(
    ("tells", "prefilled", "assumed"),
    [(False, 0.0, False), (True, 0.0, True), (True, 0.01, True), (True, 2.0, False)],
    ids=["no engine tells of it", "nothing prefilled", "next to nothing", "two tokens a step, once"],
)
def test_what_prefill_takes_is_assumed_until_an_equation_tells(
    tells: bool, prefilled: float, assumed: bool
) -> None:
    rng, fit = random.Random(5), CostFit()
    fit.tells = tells
    for turn in range(60):
        each = prefilled * (turn == 30)
        fit.add(0.01 * (1 + 0.1 * each) * rng.gauss(1, 0.02), rng.randint(1, 64), 0, each)
    cost = fit.cost()
    assert cost is not None and cost.assumed == assumed


def test_what_a_first_prefill_tells_is_known_at_once() -> None:
    """And not with the twentieth report, before which nothing moves."""
    measured, seen = MeasuredCosts(), []
    measured.report(1, "fast", {"a": 5}, 10.0, 0.0, 7)
    for turn in range(1, 31):
        tokens, now = {"a": 5 + 10 * turn}, 0.1 * turn
        if turn > 24:
            tokens["b"], now = 10 * (turn - 24), now + 1.0
        cost = measured.report(1, "fast", tokens, 10.0, now, 7 + 1000 * (turn > 24))
        if cost is not None:
            seen.append((turn, cost.assumed, round(cost.per_prefill_token, 4)))
    assert seen == [(20, True, 0.0001), (25, False, 0.001)]


def test_nothing_is_concluded_from_little_or_nonsense() -> None:
    fit = CostFit()
    for _ in range(100):
        for seconds in (0.0, -1.0, math.inf, math.nan):
            fit.add(seconds, 1, 1.0)
        fit.add(1.0, 0, 1.0)
        for kv_tokens in (-1.0, math.inf):
            fit.add(1.0, 1, kv_tokens)
        fit.add(1.0, 1, float("nan"))
    assert fit.equations == 0 and fit.cost() is None
    for _ in range(19):
        fit.add(0.01, 4, 100)
    assert fit.cost() is None
    fit.add(0.01, 4, 100)
    cost = fit.cost()
    assert cost is not None and cost.step(4, 100) == pytest.approx(0.01)


@pytest.mark.parametrize("kv_tokens", [0, 100, 700_000])
@pytest.mark.parametrize("running", [1, 4, 256])
def test_steps_that_are_all_alike_are_charged_to_the_fixed_part(running: int, kv_tokens: int) -> None:
    """They do not tell the three parts apart."""
    fit = CostFit()
    for _ in range(20):
        fit.add(0.013, running, kv_tokens)
    cost = fit.cost()
    assert cost is not None and cost.fixed == pytest.approx(0.013)
    assert (cost.per_request, cost.per_kv_token) == (pytest.approx(0, abs=1e-9), pytest.approx(0, abs=1e-9))


def test_it_is_the_same_however_often_it_was_asked() -> None:
    asked, unasked, rng = CostFit(), CostFit(), random.Random(3)
    for _ in range(95):
        running, kv = rng.randint(1, 64), rng.uniform(0, 1e5)
        for fit in (asked, unasked):
            fit.add(TRUTHS["all three"].step(running, kv) * (1 + running % 3 / 10), running, kv)
        asked.cost()
    one, other = asked.cost(), unasked.cost()
    assert one is not None and other is not None
    assert one.step(64, 1e5) == pytest.approx(other.step(64, 1e5), rel=1e-9)
    assert one.fixed == pytest.approx(other.fixed, rel=1e-6)


def test_costs_that_change_are_followed() -> None:
    fit, rng = CostFit(), random.Random(1)
    for seconds in (0.01, 0.02):
        for _ in range(5000):
            fit.add(seconds + 1e-4 * (running := rng.randint(1, 64)), running, 0)
    cost = fit.cost()
    assert cost is not None and cost.fixed == pytest.approx(0.02, rel=0.02)


def keys(*samples: int) -> list[str]:
    return [f"request {sample}" for sample in samples]


def test_reports_become_equations() -> None:
    """50 tokens a second: a step takes 20 ms. Every 20th report says what is known by then."""
    measured, told = MeasuredCosts(), []
    for second in range(1, 42):
        tokens = dict.fromkeys(keys(0, 1, 2), 50 * second)
        told.append(measured.report(4, "fast", tokens, 100.0, float(second)))
    found = {place: cost for place, cost in enumerate(told) if cost is not None}
    assert sorted(found) == [20, 40]
    assert found[20].step(3, 100.0) == pytest.approx(0.02)


CASES = {
    "it has paused": "paused",
    "other requests run now": "others",
    "nothing was generated": "still",
    "it reported twice at a time": "twice",
}


@pytest.mark.parametrize("case", CASES)
def test_reports_that_tell_nothing(case: str) -> None:
    measured = MeasuredCosts()
    for turn in range(1, 100):
        what, now = CASES[case], float(turn)
        if what == "paused":
            measured.paused(1, "fast")
        samples = keys(turn, turn + 1000, turn + 2000) if what == "others" else keys(1, 2, 3)
        gained = 7 if what == "still" else turn * 10
        at = 1.0 if what == "twice" else now
        assert measured.report(1, "fast", dict.fromkeys(samples, gained), 10.0, at) is None


@pytest.mark.parametrize(
    ("sizes", "new", "told"),
    [
        ((4, 4), 2, True),
        ((4, 4), 3, False),
        ((3, 3), 1, True),
        ((5, 5), 3, False),
        ((2, 5), 0, False),
        ((3, 5), 0, True),
    ],
)
def test_a_report_counts_when_half_of_the_requests_were_there_before(
    sizes: tuple[int, int], new: int, told: bool
) -> None:
    """Of each report as many as `sizes` say run, in turns; the first `new` ones have ended at the next."""
    measured = MeasuredCosts()
    found = []
    for turn in range(1, 22):
        running = keys(*range(turn * new, turn * new + sizes[turn % 2]))
        found.append(measured.report(1, "fast", dict.fromkeys(running, 10 * turn), 10.0, float(turn)))
    assert [each is not None for each in found] == [*[False] * 20, told]


def test_a_token_a_report_is_enough_and_a_time_counts_once() -> None:
    measured = MeasuredCosts()
    for turn in range(1, 22):
        cost = measured.report(1, "fast", dict.fromkeys(keys(0, 1), turn), 10.0, float(turn))
    assert cost is not None and cost.step(2, 10.0) == pytest.approx(1.0)
    assert measured.report(1, "fast", dict.fromkeys(keys(0, 1), 25), 10.0, 21.0) is None


def test_running_requests_are_the_mean_of_both_reports() -> None:
    """From 2 to 4 requests and from 4 to 8, in turns: steps of 3 and of 6. From 8 to 2 tells nothing."""
    truth, measured, sizes = StepCost(0.01, 0.002), MeasuredCosts(), (2, 4, 8)
    now, costs = 0.0, []
    for turn in range(40):
        size, before = sizes[turn % 3], sizes[(turn - 1) % 3]
        now += 10 * truth.step((size + before) // 2)
        tokens = dict.fromkeys(keys(*range(size)), 10 * turn)
        costs.append(measured.report(1, "fast", tokens, 10.0, now))
    (cost,) = filter(None, costs)
    assert cost.per_request == pytest.approx(truth.per_request, rel=1e-3)


def test_pools_are_measured_apart() -> None:
    measured, costs = MeasuredCosts(), {}
    for turn in range(1, 30):
        for engine, pool, tokens in ((1, "fast", 100), (2, "heavy", 200)):
            cost = measured.report(engine, pool, dict.fromkeys(keys(0), tokens * turn), 10.0, float(turn))
            costs[pool] = cost or costs.get(pool)
    fast, heavy = costs["fast"], costs["heavy"]
    assert fast is not None and heavy is not None
    assert (fast.step(1, 10), heavy.step(1, 10)) == (pytest.approx(0.01), pytest.approx(0.005))


def test_a_pool_with_few_reports_costs_what_another_one_does_times_a_factor() -> None:
    """A step of the heavy pool takes a third of that of the fast one, beside other numbers of requests."""
    truth, measured, now, found = StepCost(0.03, 0.0003), MeasuredCosts(), 0.0, []
    for turn in range(1, 60):
        size = 10 + turn % 7
        for engine, pool, speed in ((1, "fast", 1.0), (2, "heavy", 3.0)):
            if pool == "heavy" and turn < 54:
                continue
            running = keys(*range(size + engine))
            measured.paused(engine, pool)
            measured.report(engine, pool, dict.fromkeys(running, 5), 0.0, now)
            now += 10 * truth.step(len(running)) / speed
            cost = measured.report(engine, pool, dict.fromkeys(running, 15), 0.0, now)
            if pool == "heavy":
                found.append(cost)
    assert found[:3] == [None] * 3
    assert found[3] is not None and found[3].assumed
    assert [found[3].step(size) for size in (1, 40)] == pytest.approx(
        [truth.step(size) / 3 for size in (1, 40)], rel=0.05
    )
    assert measured.known("heavy") == found[-1] and not UNMEASURED.measured


def test_engines_that_have_not_reported_are_ordinary_ones() -> None:
    assert MeasuredCosts().slowness("fast", (1, 2)) == {1: 1.0, 2: 1.0}


@pytest.mark.parametrize("prefill", [0.0001, 0.01])
def test_an_engine_that_prefills_much_is_not_slow_for_that(prefill: float) -> None:
    """Requests come to engine 2 alone, one of 400 tokens between two reports."""
    measured, now, prefilled, slowness = MeasuredCosts(), 0.0, 0, {}
    for turn in range(600):
        engine = 1 + turn % 2
        fill = 400 * (engine == 2)
        measured.paused(engine, "fast")
        measured.report(engine, "fast", dict.fromkeys(keys(1, 2, 3), 5), 0.0, now, prefilled)
        now, prefilled = now + 20 * 0.05 + prefill * fill, prefilled + fill
        found = measured.report(engine, "fast", dict.fromkeys(keys(1, 2, 3), 25), 0.0, now, prefilled)
        if found is not None:
            slowness = measured.slowness("fast", (1, 2))
    assert slowness == pytest.approx({1: 1.0, 2: 1.0})


@pytest.mark.parametrize("factor", [1.0, 1.9, 0.6])
def test_engines_of_a_pool_have_the_same_constants_but_for_a_factor(factor: float) -> None:
    """Engine 2 takes `factor` times as long, and runs more requests: that is not taken for what they cost."""
    truth, measured, rng = StepCost(0.01, 0.0002), MeasuredCosts(), random.Random(3)
    now, cost = 0.0, None
    for turn in range(900):
        engine = 1 + turn % 3
        running = rng.randint(40, 140) + 30 * (engine == 2)
        measured.paused(engine, "fast")
        measured.report(engine, "fast", dict.fromkeys(keys(*range(running)), 5), 0.0, now)
        now += 10 * truth.step(running) * (factor if engine == 2 else 1.0)
        found = measured.report(engine, "fast", dict.fromkeys(keys(*range(running)), 15), 0.0, now)
        if found is not None:
            cost, slowness = found, measured.slowness("fast", (1, 2, 3))
    assert slowness == pytest.approx({1: 1.0, 2: factor, 3: 1.0}, rel=0.05)
    assert cost is not None and [cost.step(running) for running in (40, 160)] == pytest.approx(
        [truth.step(running) for running in (40, 160)], rel=0.1
    )
