"""Whatever the workload, the engines and the moves: simulated requests and engine time are accounted for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.simulate.agenda import Agenda
from rljob_runtime.simulate.batch import simulate_batch
from rljob_runtime.simulate.outcome import outcome
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.rollout import Rollout
from rljob_runtime.simulate.workload import LengthModel, ToolWaits, Workload
from tests.support.depth import examples
from tests.support.simulated.schedulers import InOrder, Mover

COST = StepCost(0.1, 0.01, 1e-4, 1e-3, (2, 4, 8))


@st.composite
def sites(draw: st.DrawFn) -> tuple[Workload, list[EngineShape], Physics]:
    """Few engines with little room, so that they run full."""
    waits = draw(st.sampled_from([None, ToolWaits(7, 0.3), ToolWaits(3, 5.0)]))
    work = LengthModel(
        mean=draw(st.integers(5, 40)), cap=80, between=0.7, within=draw(st.floats(0, 0.8)), prompt_tokens=4
    ).draw(draw(st.integers(1, 12)), draw(st.integers(1, 4)), draw(st.integers(0, 1000)), waits)
    lockstep = draw(st.booleans())
    slow = StepCost(0.3, 0.01, 1e-4, 1e-3)
    shapes = []
    for number in range(draw(st.integers(1, 4))):
        heavy = number % 2 == 1
        kv = draw(st.sampled_from([None, work.longest, work.longest + 30, 2 * work.longest]))
        shapes.append(
            EngineShape("heavy" if heavy else "fast", draw(st.integers(1, 6)), kv, slow if heavy else COST)
        )
    physics = Physics(
        lockstep=lockstep,
        admission_seconds=draw(st.sampled_from([0.0, 0.5])),
        copy_bytes_per_second=draw(st.sampled_from([None, 10.0])),
        kv_bytes_per_token=1.0,
        report_seconds=draw(st.sampled_from([None, 0.7, 3.0])),
    )
    return work, shapes, physics


@settings(max_examples=examples(120), deadline=None)
@given(sites(), st.integers(0, 1000), st.lists(st.tuples(st.floats(0, 40), st.floats(0.1, 4)), max_size=3))
def test_every_request_ends_once_and_time_adds_up(
    site: tuple[Workload, list[EngineShape], Physics], seed: int, loads: list[tuple[float, float]]
) -> None:
    work, shapes, physics = site
    agenda, done, scheduler = Agenda(), [], Mover(seed)
    rollout = Rollout(work, shapes, physics, scheduler, agenda, done.append)
    cluster = rollout.cluster
    for time, seconds in loads:
        agenda.at(time, lambda seconds=seconds: cluster.load_weights(seconds, recompute=True))
    for uid in range(work.groups):
        rollout.dispatch(uid)
    rollout.act()
    cluster.begin()
    while len(done) < work.groups:
        assert agenda.advance()
        for cohort in cluster._cohorts:
            assert (cohort.kv + cohort._held <= cohort._capacity).all()
            assert (cohort.kv >= 0).all()
            assert [len(offsets) for offsets in cohort._offsets] == cohort.running.tolist()
        rollout.act()
        cluster.begin()
    result = outcome(rollout, agenda.now, work.lengths.size, int(work.lengths.sum()))
    assert sorted(done) == list(range(work.groups))
    assert {key: tokens for key, (tokens, _) in scheduler.finishes.items()} == {
        rollout.requests.key(number): length for number, length in enumerate(work.lengths.ravel().tolist())
    }
    assert len(rollout.tally.response_seconds) == work.lengths.size
    total = np.array(result.busy) + cluster.seconds("idle") + cluster.seconds("loading")
    assert total == pytest.approx(np.full(len(shapes), result.wall))
    for shape, line in zip(shapes, result.lines, strict=True):
        assert all(0 <= running <= shape.limit for _, running in line)
        assert [time for time, _ in line] == sorted(time for time, _ in line)


@settings(max_examples=examples(60), deadline=None)
@given(sites(), st.floats(0.05, 5.0))
def test_looking_changes_nothing(site: tuple[Workload, list[EngineShape], Physics], seconds: float) -> None:
    work, shapes, _ = site
    quiet = simulate_batch(work, shapes, Physics(report_seconds=None), InOrder())
    asked = simulate_batch(work, shapes, Physics(report_seconds=seconds), InOrder())
    assert asked.wall == quiet.wall
    assert asked.response == quiet.response


@settings(max_examples=examples(60), deadline=None)
@given(sites(), st.integers(0, 1000))
def test_equal_seeds_give_equal_outcomes(
    site: tuple[Workload, list[EngineShape], Physics], seed: int
) -> None:
    first, again = (simulate_batch(*site, Mover(seed)) for _ in range(2))
    assert first == again
