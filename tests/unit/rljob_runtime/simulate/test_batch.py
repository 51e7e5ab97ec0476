"""One simulated batch, against times worked out by hand."""

import dataclasses

import numpy as np
import pytest

from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.fixed import Adjacent, Interleaved
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import EngineShape, RequestKey
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.batch import Stuck, simulate_batch
from rljob_runtime.simulate.outcome import Outcome
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.workload import LengthModel, ToolWaits, Workload
from tests.support.simulated.schedulers import InOrder, Script

SECOND = StepCost(fixed=1.0)
"""A step takes a second, whatever it does."""
QUIET = Physics(report_seconds=None)


def workload(*lengths: int, prompt: int = 2, waits: ToolWaits | None = None) -> Workload:
    """A group of one response for each length."""
    count = len(lengths)
    return Workload(
        np.array(lengths, dtype=np.int64)[:, None], np.full(count, prompt), np.arange(count), waits
    )


def engine(limit: int = 8, kv: int | None = None, cost: StepCost = SECOND, pool: str = "fast") -> EngineShape:
    return EngineShape(pool, limit, kv, cost)


def ends(scheduler: InOrder) -> list[float]:
    """When each group's response was complete."""
    return [time for _, (_, time) in sorted(scheduler.finishes.items())]


def simulate(work: Workload, *engines: EngineShape, physics: Physics = QUIET) -> tuple[Outcome, list[float]]:
    scheduler = InOrder()
    result = simulate_batch(work, engines, physics, scheduler)
    return result, ends(scheduler)


def test_a_response_takes_its_prefill_and_its_steps() -> None:
    cost = StepCost(fixed=1.0, per_request=0.5, per_kv_token=0.1, per_prefill_token=0.25)
    result, _ = simulate(workload(10), engine(cost=cost))
    # Prefill of 2 tokens; ten steps of 1 + 0.5, and attention over 2, 3, ..., 11 tokens.
    assert result.wall == pytest.approx(2 * 0.25 + 10 * 1.5 + 0.1 * (10 * 2 + 45))
    assert result.tokens == 10
    assert result.idle == 0


def test_requests_that_run_together_share_steps() -> None:
    cost = StepCost(fixed=1.0, per_request=0.1)
    result, times = simulate(workload(3, 5), engine(cost=cost))
    assert times == pytest.approx([3 * 1.2, 3 * 1.2 + 2 * 1.1])
    assert result.samples_per_second == pytest.approx(2 / result.wall)


def test_a_step_takes_as_long_as_its_graph() -> None:
    cost = StepCost(fixed=0.0, per_request=1.0, gears=(2, 4))
    _, times = simulate(workload(1, 2, 3), engine(cost=cost))
    # Three requests and then two and one: graphs of 4, 2 and 2.
    assert times == pytest.approx([4, 6, 8])


def test_what_is_beyond_the_limit_waits_for_a_place() -> None:
    _, times = simulate(workload(5, 2, 3), engine(limit=2))
    assert times == [5, 2, 5]


def test_independent_engines_do_not_wait_for_each_other() -> None:
    result, times = simulate(workload(10, 4), engine(limit=1), engine(limit=1))
    assert times == [10, 4]
    assert result.idle == pytest.approx(0.5 * 0.6)
    assert result.first_idle == pytest.approx(0.6)


def test_lockstep_engines_take_the_time_of_the_slowest_at_each_step() -> None:
    cost = StepCost(fixed=0.0, per_request=1.0)
    work = workload(4, 4, 2)
    # Requests 0 and 2 on the first engine, 1 on the second: two steps of 2 s, then two of 1 s.
    scheduler = Script({}, {RequestKey(0, 0): 0, RequestKey(1, 0): 1, RequestKey(2, 0): 0})
    shapes = [engine(cost=cost), engine(cost=cost)]
    result = simulate_batch(work, shapes, Physics(lockstep=True, report_seconds=None), scheduler)
    assert ends(scheduler) == [6, 6, 4]
    assert result.idle == 0


def test_a_prefill_stops_the_whole_lockstep_pool() -> None:
    cost = StepCost(fixed=1.0, per_prefill_token=0.5)
    lockstep = Physics(lockstep=True, admission_seconds=3.0, report_seconds=None)
    # A place becomes free after two steps; the prefill of 2 tokens takes 1 s, and 3 s that come with it.
    scheduler = InOrder()
    simulate_batch(workload(6, 2, 1), [engine(limit=1, cost=cost)] * 2, lockstep, scheduler)
    begin = 2 * 0.5 + 3
    assert ends(scheduler) == pytest.approx([begin + 2 + 4 + 4, begin + 2, begin + 2 + 4 + 1])
    alone = InOrder()
    simulate_batch(workload(6, 2, 1), [engine(limit=1, cost=cost)] * 2, QUIET, alone)
    assert ends(alone) == pytest.approx([1 + 6, 1 + 2, 1 + 2 + 1 + 1])


def test_each_pool_has_a_lockstep_of_its_own() -> None:
    slow = StepCost(fixed=2.0)
    lockstep = Physics(lockstep=True, report_seconds=None)
    result = simulate_batch(
        workload(3, 3), [engine(limit=1), engine(limit=1, cost=slow, pool="heavy")], lockstep, InOrder()
    )
    assert result.wall == 6
    assert result.first_idle == pytest.approx(0.5)


def test_a_full_kv_cache_pushes_the_newest_out_which_is_prefilled_again() -> None:
    cost = StepCost(fixed=1.0, per_prefill_token=0.1)
    # Two requests with 2 tokens of prompt in 20: after 8 steps they fill it, and one goes.
    result, times = simulate(workload(12, 12), engine(kv=20, cost=cost))
    assert result.pushed_out == 1
    # The other has 4 steps left; then 10 tokens are computed again, and 4 steps follow.
    assert times == pytest.approx([0.4 + 12, 0.4 + 12 + 1.0 + 4])


def test_what_finds_no_room_in_the_kv_cache_is_not_admitted() -> None:
    result, times = simulate(workload(5, 5, prompt=10), engine(kv=20))
    assert result.pushed_out == 0
    assert times == [5, 10]


def test_a_response_stands_still_for_its_tool_and_keeps_its_kv() -> None:
    cost = StepCost(fixed=1.0, per_prefill_token=0.5)
    _, times = simulate(workload(7, waits=ToolWaits(3, 10.0)), engine(cost=cost))
    # After 3 tokens and after 6; nothing is prefilled twice.
    assert times == pytest.approx([1 + 3 + 10 + 3 + 10 + 1])


def test_others_run_on_while_a_response_waits_for_its_tool() -> None:
    work = workload(4, 2, waits=ToolWaits(3, 0.5))
    result, times = simulate(work, engine())
    assert times == [4.5, 2]
    assert result.idle == pytest.approx(0.5 / 4.5)


@pytest.mark.parametrize(("waits", "step"), [(None, 0.5), (ToolWaits(4, 10.0), 3.0)])
def test_policies_know_of_waiting_responses_what_reports_would_tell(
    waits: ToolWaits | None, step: float
) -> None:
    """A token takes as long as a step, and its part of what the response waits for its tool."""
    router = Router(Policy())
    shape = EngineShape("fast", 4, None, StepCost(0.5))
    simulate_batch(workload(4, 2, waits=waits), [shape], Physics(), router)
    assert router.book.engines[0].shape.cost.step(1) == step


def test_a_full_house_of_waiting_tools_takes_nothing_new() -> None:
    work = workload(4, 2, waits=ToolWaits(3, 10.0))
    _, times = simulate(work, engine(limit=1))
    assert times == [14, 16]


COPIED = Physics(report_seconds=1.0, copy_bytes_per_second=5.0, kv_bytes_per_token=10.0)


@pytest.mark.parametrize(
    ("physics", "seconds"),
    [
        (Physics(report_seconds=1.0), 0.5 * 6),
        (COPIED, 6 * 10 / 5),
        (dataclasses.replace(COPIED, copy_seconds=2.0), 6 * 10 / 5 + 2),
    ],
    ids=["prefill", "copy", "copy that also takes a fixed time"],
)
def test_a_move_costs_a_prefill_or_a_copy(physics: Physics, seconds: float) -> None:
    cost = StepCost(fixed=1.0, per_prefill_token=0.5)
    key = RequestKey(0, 0)
    scheduler = Script({key: (4, 1, False)}, {key: 0})
    result = simulate_batch(workload(10), [engine(cost=cost)] * 2, physics, scheduler)
    # It has 4 tokens, and 6 with its prompt, when its prefill of 1 s and 4 steps are over.
    assert scheduler.interruptions == [(key, 4, 5.0)]
    assert result.wall == pytest.approx(5 + seconds + 6)
    assert (result.moves, result.moved_tokens) == (1, 6)
    assert result.stall == pytest.approx(seconds)


def test_a_restart_drops_its_tokens() -> None:
    key = RequestKey(0, 0)
    scheduler = Script({key: (4, 1, True)}, {key: 0})
    result = simulate_batch(workload(10), [engine()] * 2, Physics(report_seconds=1.0), scheduler)
    assert result.wall == 4 + 10
    assert (result.restarts, result.wasted_tokens, result.moves) == (1, 4, 0)
    assert scheduler.finishes[key][0] == 10


def test_reports_tell_the_tokens_so_far() -> None:
    scheduler = InOrder()
    simulate_batch(workload(5, 3), [engine()], Physics(report_seconds=2.0), scheduler)
    a, b = RequestKey(0, 0), RequestKey(1, 0)
    assert [report for report in scheduler.reports if report] == [{a: 2, b: 2}, {a: 4}]


def test_the_longest_request_must_fit() -> None:
    with pytest.raises(ValueError, match=r"engine 1: kv_tokens must be at least 12, .* \(found 11\)"):
        simulate(workload(10), engine(), engine(kv=11))


def test_engines_of_a_lockstep_pool_are_alike() -> None:
    with pytest.raises(ValueError, match="the engines of pool fast run in lockstep and must have one cost"):
        simulate_batch(
            workload(10), [engine(), engine(cost=StepCost(2.0))], Physics(lockstep=True), InOrder()
        )


def test_a_scheduler_that_leaves_requests_lying_is_found_out() -> None:
    class Lazy(InOrder):
        def decide(self, now: float) -> list[object]:  # type: ignore[override]
            return []

    with pytest.raises(Stuck, match="2 groups are not complete"):
        simulate_batch(workload(1, 1), [engine()], Physics(), Lazy())  # type: ignore[arg-type]


def test_more_than_the_limit_is_refused() -> None:
    class Pushy(InOrder):
        def room(self) -> list[int]:
            return [0]

    with pytest.raises(ValueError, match="engine 0 has 1 requests, its limit"):
        simulate_batch(workload(1, 1), [engine(limit=1)], QUIET, Pushy())


def test_the_router_s_policies_decide() -> None:
    # Four engines and groups of four equal responses, one group four times as long as the others.
    lengths = np.full((8, 4), 10)
    lengths[0] = 40
    work = Workload(lengths, np.full(8, 1), np.arange(8))
    shapes = [engine(limit=4, cost=StepCost(fixed=1.0, per_request=0.1))] * 4
    walls = {
        policy: simulate_batch(work, shapes, QUIET, Router(policy(8))).wall
        for policy in (Adjacent, Interleaved)
    }
    # Adjacent: one engine runs the whole long group, 1.4 s a step. Interleaved: each has one of it.
    assert walls[Adjacent] == pytest.approx(40 * 1.4 + 10 * 1.4)
    # Beside it run three short ones, three, one, and none.
    assert walls[Interleaved] == pytest.approx(10 * 1.4 + 10 * 1.4 + 10 * 1.2 + 10 * 1.1)


def test_ranks_that_are_levelled_share_shorter_steps() -> None:
    """Eight ranks in lockstep: against requests that stay where they began, and against levelling by each
    rank's own end."""
    cost = StepCost(0.08, 1.6e-3, 8e-7, 1e-4, (1, 2, 4, *range(8, 65, 8)), 2e-6)
    physics = Physics(
        lockstep=True, copy_bytes_per_second=80e9, kv_bytes_per_token=160_000, report_seconds=20.0
    )
    work = LengthModel(3000, 12000, 0.6, 0.2, prompt_tokens=64).draw(24, 8, seed=0)

    def seconds(policy: Policy, lockstep: bool = True) -> float:
        shapes = [EngineShape("fast", 64, None, cost, lockstep)] * 8
        return simulate_batch(work, shapes, physics, Router(policy)).wall

    levelled = seconds(Adaptive(12000))
    assert levelled < 0.98 * seconds(Policy())
    assert levelled < 0.995 * seconds(Adaptive(12000), lockstep=False)
