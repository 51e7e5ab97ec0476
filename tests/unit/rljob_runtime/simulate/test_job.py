"""The simulated asynchronous job."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rljob_runtime.groups.staleness import Bound
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.job import JobModel, simulate_job
from rljob_runtime.simulate.outcome import Outcome, Quantiles
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.workload import LengthModel, ToolWaits, Workload
from tests.support.simulated.schedulers import InOrder

SECOND = StepCost(fixed=1.0)
QUIET = Physics(report_seconds=None)


def equal_groups(count: int, tokens: int) -> Workload:
    return Workload(np.full((count, 2), tokens), np.full(count, 1), np.arange(count))


def simulate(
    model: JobModel, work: Workload, engines: int = 1, limit: int = 64, cost: StepCost = SECOND
) -> Outcome:
    return simulate_job(work, [EngineShape("fast", limit, None, cost)] * engines, QUIET, InOrder(), model)


def test_bound_0_generates_and_trains_in_turn() -> None:
    model = JobModel(Bound(0, 2), steps=3, trainer_seconds=4.0, sync_seconds=0.5)
    result = simulate(model, equal_groups(6, 10))
    assert result.steps == pytest.approx((14, 28.5, 43))
    assert result.oldest == 0
    assert (result.samples, result.tokens) == (12, 120)
    # While the trainer trains; weights come to engines that have nothing to do.
    assert result.idle == pytest.approx(13 / 43)


def test_bound_1_generates_while_it_trains() -> None:
    model = JobModel(Bound(1, 2), steps=4, trainer_seconds=4.0)
    result = simulate(model, equal_groups(8, 10))
    # The second batch was admitted with the first; the third when the first was trained, at 14 s.
    assert result.steps == pytest.approx((14, 18, 28, 32))
    assert result.oldest == 1


@pytest.mark.parametrize(
    ("bound", "sends", "ends"),
    [
        # 10 s to generate, 4 s to train, 4 s until engines have the version.
        (Bound(0, 2), False, (14, 32, 50, 68)),
        (Bound(0, 2), True, (14, 32, 50, 68)),
        # Two steps in 18 s: the second trains while engines generate for the first of the next two.
        (Bound(1, 2), False, (14, 19, 32, 37, 50, 55)),
        (Bound(1, 2), True, (14, 22, 32, 40, 50, 58)),
        (Bound(1, 2, masks=True), False, (14, 19, 32, 37, 50, 55)),
        # Three steps in 18 s.
        (Bound(2, 2), False, (14, 19, 24, 32, 37, 42, 50)),
        # A version every two steps, and no other is published.
        (Bound(0, 2, steps_per_version=2), False, (14, 18, 36, 40)),
    ],
)
def test_groups_of_a_version_begin_when_engines_have_it(
    bound: Bound, sends: bool, ends: tuple[float, ...]
) -> None:
    model = JobModel(
        bound, len(ends), trainer_seconds=4.0, publish_seconds=1.0, delivery_seconds=3.0, trainer_sends=sends
    )
    assert simulate(model, equal_groups(2 * len(ends), 10)).steps == pytest.approx(ends)


@pytest.mark.parametrize(
    ("sends", "ends"),
    [
        # Published from 11 s, loaded at 18 s: the next one is published then, and loaded at 25 s.
        (False, (11, 13, 29, 36)),
        # The trainer waits for that before it trains.
        (True, (11, 19, 29, 37)),
    ],
)
def test_one_version_is_under_way_at_a_time(sends: bool, ends: tuple[float, ...]) -> None:
    model = JobModel(
        Bound(1, 2), 4, trainer_seconds=1.0, publish_seconds=1.0, delivery_seconds=6.0, trainer_sends=sends
    )
    assert simulate(model, equal_groups(8, 10)).steps == pytest.approx(ends)


def test_engines_generate_while_a_version_is_on_its_way() -> None:
    work = Workload(np.array([[10], [30]]), np.array([1, 1]), np.arange(2))
    model = JobModel(
        Bound(1, 1), 2, trainer_seconds=4.0, publish_seconds=1.0, delivery_seconds=5.0, sync_seconds=2.0,
        recompute_kv=True,
    )  # fmt: skip
    result = simulate(model, work, cost=StepCost(fixed=1.0, per_prefill_token=0.1))
    # Trained at 14.2 s, loaded from 20.2 s to 22.2 s: the second group has 20 tokens then.
    assert result.steps == pytest.approx((14.2, 20.2 + 2 + 0.1 * (1 + 20) + 10 + 4))
    assert result.loading * result.wall == pytest.approx(2)


class Eager(InOrder):
    """Begins all that is admitted, wherever it may wait then."""

    def wants_group(self, awaited: bool = False) -> bool:
        return True


@pytest.mark.parametrize(
    ("model", "seconds"),
    [
        # A group runs at a time, for 10 s, and all of a version come together.
        (JobModel(Bound(0, 2), steps=3, trainer_seconds=4.0, sync_seconds=0.5), [10, 20] * 3),
        # Four at once; the engine stands still for half a second when the first two are trained.
        (JobModel(Bound(1, 2), steps=2, trainer_seconds=4.0, sync_seconds=0.5), [10, 20, 30.5, 40.5]),
        # A place in the queue is free when a step has trained, at 14 s and 24 s.
        (JobModel(Bound(2, 1), steps=3, trainer_seconds=4.0, capacity_groups=1), [10, 10, 10]),
    ],
    ids=["bound 0", "bound 1", "a full queue"],
)
def test_seconds_count_from_admission_however_late_a_policy_begins_a_group(
    model: JobModel, seconds: list[float]
) -> None:
    work, shapes = equal_groups(len(seconds), 10), [EngineShape("fast", 2, None, SECOND)]
    for scheduler in (InOrder(), Eager()):
        result = simulate_job(work, shapes, QUIET, scheduler, model)
        assert result.group == Quantiles.of(seconds)
        assert result.response == Quantiles.of(seconds * 2)


def test_training_time_grows_with_tokens_and_prompts() -> None:
    model = JobModel(Bound(0, 1), steps=1, trainer_seconds=1.0, trainer_seconds_per_token=0.5)
    assert simulate(model, equal_groups(1, 10)).wall == pytest.approx(10 + 1 + 0.5 * 2 * 11)


def test_engines_stand_still_for_new_weights_and_compute_kv_again_where_told() -> None:
    work = Workload(np.array([[10], [30]]), np.array([1, 1]), np.arange(2))
    cost = StepCost(fixed=1.0, per_prefill_token=0.1)
    # Two prompts of a token are prefilled together, 0.2 s; the first group is trained from 10.2 s to 14.2 s.
    # Then the second has 14 tokens.
    for recompute, again in ((False, 0.0), (True, 0.1 * (1 + 14))):
        model = JobModel(Bound(1, 1), steps=2, trainer_seconds=4.0, sync_seconds=2.0, recompute_kv=recompute)
        result = simulate(model, work, cost=cost)
        assert result.steps == pytest.approx((14.2, 14.2 + 2 + again + 16 + 4))
        assert result.loading * result.wall == pytest.approx(2)


def test_a_small_queue_holds_generation_back() -> None:
    roomy = simulate(JobModel(Bound(2, 2), steps=6, trainer_seconds=9.0), equal_groups(12, 10))
    tight = simulate(
        JobModel(Bound(2, 2), steps=6, trainer_seconds=9.0, capacity_groups=2), equal_groups(12, 10)
    )
    assert tight.wall > roomy.wall
    assert tight.oldest < roomy.oldest


@pytest.mark.parametrize("staleness", [0, 0.5, 1, 2, 3.5])
def test_no_sample_is_older_than_the_bound(staleness: float) -> None:
    work = LengthModel(mean=60, cap=600, between=0.8, within=0.6, prompt_tokens=5).draw(8 * 12, 4, seed=4)
    bound = Bound(staleness, 8)
    model = JobModel(bound, steps=12, trainer_seconds=5.0, trainer_seconds_per_token=1e-3, sync_seconds=1.0)
    result = simulate(model, work, engines=3, limit=12, cost=StepCost(0.1, 0.01, 1e-5, 1e-3))
    assert result.oldest <= bound.versions
    assert result.samples == 8 * 12 * 4
    assert result.tokens == work.lengths.sum()


def test_too_few_groups_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 6 groups \(found 5\)"):
        simulate(JobModel(Bound(0, 2), steps=3), equal_groups(5, 10))


def test_impossible_jobs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"steps must be at least 1 \(found 0\)"):
        JobModel(Bound(0, 2), steps=0)
    with pytest.raises(ValueError, match=r"sync_seconds must be at least 0 \(found -1\)"):
        JobModel(Bound(0, 2), steps=1, sync_seconds=-1.0)
    with pytest.raises(ValueError, match=r"delivery_seconds must be at least 0 \(found -1\)"):
        JobModel(Bound(0, 2), steps=1, delivery_seconds=-1.0)


def test_steps_are_shorter_where_what_they_wait_for_moves_first() -> None:
    """Two engines, and a heavy one that is twice as fast and has four places, for which newer and older
    groups compete: with a look at deadlines those that the next step waits for get them."""
    slow = StepCost(0.01, 5e-4, 0.0, 1e-5)
    quick = StepCost(0.005, 2.5e-4, 0.0, 1e-5)
    shapes = [EngineShape("fast", 32, None, slow)] * 2 + [EngineShape("heavy", 4, None, quick)]
    model = JobModel(Bound(1, 8), steps=8, trainer_seconds=2.0, sync_seconds=0.1)

    def seconds(waits: bool) -> float:
        jobs = []
        for seed in range(8):
            work = LengthModel(700, 4000, 0.6, 0.6, prompt_tokens=20).draw(64, 4, seed)
            router = Router(Adaptive(4000, 0.5, waits=waits))
            jobs.append(simulate_job(work, shapes, Physics(report_seconds=0.5), router, model))
        assert all(job.oldest <= 1 for job in jobs)
        return sum(job.wall for job in jobs)

    assert seconds(waits=True) < 0.985 * seconds(waits=False)


def test_where_many_requests_wait_a_step_is_shorter_with_the_longest_first() -> None:
    """Two engines with eight places, 32 groups of eight, and a few that are much longer than the others."""
    cost = StepCost(0.01, 0.0, 0.0, 1e-5)
    shapes = [EngineShape("fast", 8, None, cost)] * 2
    model = JobModel(Bound(0, 32), steps=3, trainer_seconds=1.0)

    def seconds(policy: Callable[[], Policy]) -> float:
        jobs = []
        for seed in range(4):
            work = LengthModel(250, 4000, 1.2, 0.2, prompt_tokens=20).draw(96, 8, seed)
            jobs.append(simulate_job(work, shapes, Physics(report_seconds=0.2), Router(policy()), model))
        return sum(job.wall for job in jobs)

    assert seconds(lambda: Adaptive(4000)) < 0.95 * seconds(Policy)


def test_with_plans_twice_as_often_a_step_is_still_shorter_with_the_longest_first() -> None:
    """Two engines with 16 places, and 64 groups of eight. The sooner a plan, the less it knows of lengths:
    what only seems long must not have all places when the longest shows."""
    cost = StepCost(0.01, 1e-4, 1e-8, 1e-5)
    shapes = [EngineShape("fast", 16, None, cost)] * 2
    model = JobModel(Bound(0, 64), steps=1)
    lengths = LengthModel(800, 16_000, 1.6, 0.4, prompt_tokens=50)
    works = [lengths.draw(64, 8, seed) for seed in range(4)]

    def seconds(policy: Callable[[], Policy]) -> float:
        physics = Physics(report_seconds=0.5)
        return sum(simulate_job(work, shapes, physics, Router(policy()), model).wall for work in works)

    assert seconds(lambda: Adaptive(16_000, plan_seconds=0.5)) < 0.98 * seconds(Policy)


def no_slower(
    work: Callable[[int], Workload], shapes: list[EngineShape], report_seconds: float, model: JobModel
) -> None:
    """Adaptive routing takes no longer than least in flight, over three draws."""

    def seconds(policy: Callable[[], Policy]) -> float:
        physics = Physics(report_seconds=report_seconds)
        jobs = [simulate_job(work(seed), shapes, physics, Router(policy()), model) for seed in range(3)]
        return sum(job.wall for job in jobs)

    longest = int(work(0).lengths.max())
    assert seconds(lambda: Adaptive(longest)) <= 1.01 * seconds(Policy)


def test_a_heavy_pool_is_not_idle_beside_groups_that_come_all_at_once() -> None:
    """Lengths that are much alike: none of the new responses is long, and the heavy pool is about to end."""

    def work(seed: int) -> Workload:
        lengths = np.random.default_rng(seed).integers(1, 650, (96, 8))
        return Workload(lengths, np.full(96, 64), np.arange(96) % 32)

    cost = StepCost(0.01, 4e-4, 1.5e-9, 2e-4, (1, 2, 4, 8, 16, 32, 64, 128))
    shapes = [EngineShape(pool, 32, None, cost) for pool in 4 * ["fast"] + 4 * ["heavy"]]
    no_slower(work, shapes, 0.16, JobModel(Bound(2, 16), steps=6, trainer_seconds=3.0, sync_seconds=0.13))


def test_no_deadline_is_nearer_than_it_must_be() -> None:
    """Nothing is ordered by length here: groups are begun as late as with least in flight."""

    def work(seed: int) -> Workload:
        random = np.random.default_rng(seed)
        tails = 160 * (1 + random.pareto(1.3, (512, 2))) * np.exp(random.normal(0, 1.0, (512, 1)))
        return Workload(np.clip(tails, 1, 4096).astype(np.int64), np.full(512, 64), np.arange(512))

    shapes = [EngineShape("fast", 16, None, StepCost(0.03, 3e-5, 1e-8, 1.5e-4))] * 3
    no_slower(work, shapes, 0.8, JobModel(Bound(1, 128), steps=4, trainer_seconds=48.0, sync_seconds=0.65))


@pytest.mark.parametrize("pool", ["fast", "heavy"])
@pytest.mark.parametrize(
    "bound",
    [Bound(0, 8), Bound(1, 8), Bound(2, 8), Bound(1, 8, masks=True), Bound(1, 8, steps_per_version=2)],
    ids=["bound 0", "bound 1", "bound 2", "stale tokens masked", "two steps a version"],
)
def test_with_a_single_engine_everything_is_as_with_least_in_flight(bound: Bound, pool: str) -> None:
    """Each response and step ends at the same time, and is as old."""
    shape = EngineShape(pool, 16, None, StepCost(0.01, 1e-4, 1e-8, 1e-5))
    work = LengthModel(300, 4000, 1.0, 0.5, prompt_tokens=20).draw(64, 4, 0)
    model = JobModel(bound, steps=8, trainer_seconds=10.0, sync_seconds=0.3)

    def simulated(policy: Policy) -> Outcome:
        return simulate_job(work, [shape], Physics(report_seconds=0.5), Router(policy), model)

    assert simulated(Adaptive(4000, groups_per_step=8)) == simulated(Policy())


def test_nothing_is_reported_while_the_trainer_alone_works() -> None:
    """A step of the trainer may take as long as tens of thousands of reports, and each of them takes time."""
    scheduler = InOrder()
    model = JobModel(Bound(0, 2), steps=2, trainer_seconds=10_000.0)
    shape, physics = EngineShape("fast", 64, None, SECOND), Physics(report_seconds=4.0)
    result = simulate_job(equal_groups(4, 10), [shape], physics, scheduler, model)
    assert result.steps == pytest.approx((10_010, 20_020))
    # After 4 and 8 seconds of 10, in which four responses run; once more; and when the trainer has trained.
    assert [sum(report.values()) for report in scheduler.reports] == [16, 32, 0, 0, 16, 32, 0, 0]


def test_reports_go_on_with_the_next_step() -> None:
    """Also where one comes at the moment at which weights are loaded, after which nothing else is to happen
    until the step's groups begin."""
    scheduler = InOrder()
    model = JobModel(Bound(0, 2), steps=2, trainer_seconds=1.0, sync_seconds=20.0)
    shape, physics = EngineShape("fast", 64, None, SECOND), Physics(report_seconds=4.0)
    simulate_job(equal_groups(4, 10), [shape], physics, scheduler, model)
    assert [sum(report.values()) for report in scheduler.reports if any(report.values())] == [16, 32, 16, 32]


def test_waits_of_days_take_few_reports() -> None:
    """Responses are under way, and get no longer while they wait for their tools."""
    scheduler = InOrder()
    work = replace(equal_groups(4, 10), waits=ToolWaits(5, 1e6))
    shape, physics = EngineShape("fast", 64, None, SECOND), Physics(report_seconds=1.0)
    result = simulate_job(work, [shape], physics, scheduler, JobModel(Bound(0, 2), steps=2))
    assert result.steps[-1] > 2e6
    assert len(scheduler.reports) < 1000


def test_by_length_no_step_waits_for_a_group_that_begins_when_it_might_be_younger() -> None:
    """All of a group run at a time. The fourth begins when the first version has come, and need not be
    trained before the second."""
    lengths = np.full((6, 8), 10)
    lengths[3, 0] = 100
    work = Workload(lengths, np.ones(6, int), np.arange(6))
    model = JobModel(Bound(1, 2), steps=3, trainer_seconds=1.0)
    shapes = [EngineShape("fast", 8, cost=SECOND)]
    policies = Policy(), Adaptive(100, groups_per_step=2)
    ends = [simulate_job(work, shapes, QUIET, Router(policy), model).steps for policy in policies]
    assert ends == [(21, pytest.approx(61), pytest.approx(131))] * 2
