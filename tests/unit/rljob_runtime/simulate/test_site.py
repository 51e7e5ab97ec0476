"""From an RLJob and assumptions to what is simulated."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.groups.staleness import Bound
from rljob_runtime.routing.choose import policy_of
from rljob_runtime.routing.gears import capture_sizes
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.assumptions import Assumptions
from rljob_runtime.simulate.job import simulate_job
from rljob_runtime.simulate.site import Site, Sizes, routed
from rljob_runtime.simulate.workload import ToolWaits
from tests.support.jobs import job

ASSUMED = {
    "engines": {
        "fast": {
            "fixedSeconds": 0.5, "secondsPerRequest": 0.25, "secondsPerKvToken": 0.125,
            "secondsPerPrefillToken": 0.0625, "graphs": [2, 4], "kvTokens": 100,
        },
        "heavy": {"fixedSeconds": 0.1, "kvTokens": None},
        "lockstep": True,
        "admissionSeconds": 0.75,
    },
    "moves": {"copyBytesPerSecond": 100.0, "kvBytesPerToken": 10.0},
    "trainer": {"secondsPerStep": 3.0, "secondsPerToken": 0.8},
    "weightPublishSeconds": 0.25,
    "weightDeliverySeconds": 2.5,
    "weightSyncSeconds": 1.5,
    "lengths": {"mean": 4.0, "betweenPrompts": 0.1, "withinPrompt": 0.2, "order": 0.5, "promptTokens": 7},
    "tools": {"everyTokens": 3, "seconds": 9.0},
}  # fmt: skip


def site(changes: dict[str, Any] | None = None, assumed: dict[str, Any] | None = None) -> Site:
    spec = RLJob.model_validate(job(changes)).spec
    return Site(spec, Assumptions.model_validate(assumed or {}), steps=3)


def test_engines_are_those_of_the_pools() -> None:
    pools = {"pools.fastRollout.replicas": 2, "pools.heavyRollout.replicas": 1}
    shapes = site({**pools, "training.rollout.maxRunningRequests": 5}, ASSUMED).shapes()
    assert [(shape.pool, shape.limit, shape.kv_tokens) for shape in shapes] == [
        ("fast", 5, 100), ("fast", 5, 100), ("heavy", 5, None),
    ]  # fmt: skip
    assert shapes[0].cost == (0.5, 0.25, 0.125, 0.0625, (2, 4), 0.1, False, True)
    assert all(shape.lockstep for shape in shapes)
    assert shapes[2].cost.fixed == 0.1


def test_heavy_engines_are_as_fast_ones_where_nothing_is_said() -> None:
    fast, heavy = site({"pools.heavyRollout.replicas": 1}).shapes()
    assert heavy == fast._replace(pool="heavy")
    assert not fast.lockstep and fast.cost.per_copied_token is None


@pytest.mark.parametrize(
    ("engine", "gears"),
    [
        ({"vllm": {}}, capture_sizes(6)),
        ({"torch": {}}, capture_sizes(6)),
        ({"vllm": {"captureSizes": [2, 6]}}, (2, 6)),
        ({"vllm": {"enforceEager": True}}, ()),
    ],
)
def test_graphs_are_those_of_the_job_s_engines(engine: dict[str, Any], gears: tuple[int, ...]) -> None:
    changes = {"training.rollout.engine": engine, "training.rollout.maxRunningRequests": 6}
    assert site(changes).shapes()[0].cost.gears == gears
    assert site(changes, ASSUMED).shapes()[0].cost.gears == (2, 4), "unless the assumptions say otherwise"


def test_engines_that_share_an_accelerator_have_graphs_for_their_part_of_the_requests() -> None:
    changes = {"accelerator": "nvidia", "training.rollout.maxRunningRequests": 7}
    pools = {"pools.fastRollout.enginesPerAccelerator": 2, "pools.heavyRollout.replicas": 1}
    fast, heavy = site({**changes, **pools}).shapes()
    assert fast.limit == heavy.limit == 7
    assert fast.cost.gears == tuple(2 * size for size in capture_sizes(4))
    assert heavy.cost.gears == capture_sizes(7)
    given = {"training.rollout.engine": {"vllm": {"captureSizes": [2, 6]}}}
    assert site({**changes, **pools, **given}).shapes()[0].cost.gears == (4, 12)


def test_physics_is_what_is_assumed() -> None:
    physics = site(assumed=ASSUMED).physics()
    assert physics.lockstep
    assert physics.admission_seconds == 0.75
    assert physics.copy(50) == pytest.approx(5.0)
    assert site().physics().copy(50) is None


def test_lengths_are_what_is_assumed() -> None:
    where = site(assumed=ASSUMED)
    model = where.lengths()
    assert (model.mean, model.cap, model.between, model.within) == (4.0, 8, 0.1, 0.2)
    assert (model.order, model.prompt_tokens) == (0.5, 7)
    assert where.waits == ToolWaits(3, 9.0)
    work = where.draw(seed=1)
    assert work.lengths.shape == (3 * 4, 8)


@pytest.mark.parametrize("cap", [1, 2, 8, 1024])
def test_a_quarter_of_the_longest_response_is_the_mean_where_nothing_is_said(cap: int) -> None:
    changes = {
        "training.rollout.maxResponseTokens": cap,
        "training.model.random.maxPositionEmbeddings": 2048,
    }
    where = site(changes)
    assert where.draw(seed=0).lengths.max() <= cap
    if cap > 4:
        assert where.lengths().mean == cap / 4
    assert where.lengths().prompt_tokens == 8


def test_the_trainer_s_ranks_share_the_tokens() -> None:
    changes = {"accelerator": "nvidia", "pools.trainer": {"replicas": 2, "acceleratorsPerWorker": 2}}
    model = site(changes, ASSUMED).job()
    assert model.trainer_seconds == 3.0
    assert model.trainer_seconds_per_token == pytest.approx(0.2)


def test_ranks_beyond_the_samples_of_an_update_have_no_share_of_them() -> None:
    changes = {"accelerator": "nvidia", "pools.trainer": {"replicas": 100, "acceleratorsPerWorker": 2}}
    assert site(changes, ASSUMED).job().trainer_seconds_per_token == pytest.approx(0.8 / 32)


def test_a_version_s_way_is_what_is_assumed() -> None:
    model = site(assumed=ASSUMED).job()
    assert (model.publish_seconds, model.delivery_seconds, model.sync_seconds) == (0.25, 2.5, 1.5)
    model = site().job()
    assert (model.publish_seconds, model.delivery_seconds, model.sync_seconds) == (0.0, 0.0, 2.0)


@pytest.mark.parametrize(
    ("changes", "sends"),
    [
        ({}, False),
        ({"accelerator": "nvidia"}, True),
        ({"accelerator": "nvidia", "training.async.weightSync": {"push": {}, "transport": "nccl"}}, True),
        ({"accelerator": "nvidia", "training.async.weightSync": {"push": {}, "transport": "tcp"}}, False),
        ({"accelerator": "nvidia", "training.async.weightSync": {"pull": {}}}, False),
        ({"accelerator": "nvidia", "pools.fastRollout.enginesPerAccelerator": 2}, False),
        (
            {
                "accelerator": "nvidia", "training.adapter": {}, "training.model.dtype": "bfloat16",
                "training.rollout.engine": {"vllm": {}},
            },
            False,
        ),
    ],
    ids=["CPUs", "GPUs", "nccl", "tcp", "pull", "engines share", "adapter"],
)  # fmt: skip
def test_the_trainer_waits_for_engines_where_it_may_send_weights_itself(
    changes: dict[str, Any], sends: bool
) -> None:
    assert site(changes).job().trainer_sends == sends
    assert site(changes, {"trainerSendsWeights": not sends}).job().trainer_sends != sends


def test_the_bound_is_the_job_s() -> None:
    asynchronous = {
        "maxStaleness": 0.5, "stepsPerVersion": 2, "queueCapacity": 70,
        "weightSync": {"push": {"inFlight": "abort"}},
    }  # fmt: skip
    model = site({"training.async": asynchronous}).job()
    assert model.bound == Bound(0.5, 4, 2)
    assert model.capacity_groups == 70 // 8


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        ({}, True),
        ({"training.async.weightSync": {"push": {"inFlight": "abort"}}}, True),
        ({"training.async.weightSync": {"push": {"inFlight": "wait"}}}, False),
        ({"training.async.weightSync": {"push": {"kvAfterUpdate": "keep"}}}, False),
        ({"training.async.weightSync": {"pull": {}}}, False),
        ({"training.adapter": {}, "training.rollout.engine": {"vllm": {}}}, False),
    ],
)
def test_whether_an_update_costs_a_prefill(changes: dict[str, Any], again: bool) -> None:
    assert site(changes).job().recompute_kv == again


def test_where_stale_tokens_are_masked_no_simulated_step_waits_for_them() -> None:
    asynchronous = {"maxStaleness": 1, "staleTokens": "mask"}
    assert site({"training.async": asynchronous}).job().bound == Bound(1, 4, masks=True)


def test_another_policy_and_other_sizes() -> None:
    spec = site({"training.rollout.routing": {"interleaved": {}}}).spec
    assert routed(spec, "interleaved") is spec
    other = routed(spec, "adjacent").training.rollout.routing
    assert other is not None and other.yaml_choice == "adjacent"
    sizes = Sizes(3, 2, 1)
    assert Sizes.of(sizes.applied(spec)) == sizes
    assert sizes.accelerators(spec) == 6


def test_plans_know_of_engines_what_these_measure_and_not_what_is_assumed() -> None:
    """A step with a prefill takes as long as hundreds of others, of which the cost of a prefilled token says
    nothing: plans that know that cost make three times as many moves. What theirs costs in finding out is in
    the first steps."""
    changes = {
        "pools.fastRollout.replicas": 1, "pools.heavyRollout.replicas": 1,
        "training.rollout.maxResponseTokens": 64, "training.rollout.samplesPerPrompt": 4,
        "training.async.maxStaleness": 1,
    }  # fmt: skip
    assumed = {
        "engines": {
            "fast": {"fixedSeconds": 0.01, "secondsPerKvToken": 1e-3, "secondsPerPrefillToken": 0.0},
            "admissionSeconds": 2.0,
        },
        "lengths": {"mean": 20.0, "betweenPrompts": 0.3, "withinPrompt": 0.6, "promptTokens": 6},
        "weightSyncSeconds": 0.5,
    }
    ours = replace(site(changes, assumed), steps=12)
    work = [ours.draw(seed) for seed in range(2)]
    found = [ours.run(each) for each in work]
    told = [
        simulate_job(each, ours.shapes(), ours.physics(), Router(policy_of(ours.spec)), ours.job())
        for each in work
    ]
    assert 2 * sum(each.moves for each in found) < sum(each.moves for each in told)
    assert sum(each.wall for each in found) < 0.95 * sum(each.wall for each in told)


@pytest.mark.parametrize(
    "engine",
    [
        {"fixedSeconds": 1e-6, "secondsPerKvToken": 1e-3},
        {"fixedSeconds": 1e-6, "secondsPerRequest": 0.1},
        {"fixedSeconds": 0.1},
    ],
    ids=["by tokens", "by requests", "whatever it does"],
)
def test_reports_come_as_often_in_a_response_whatever_a_step_takes_its_time_for(
    engine: dict[str, float],
) -> None:
    changes = {"training.rollout.maxResponseTokens": 2000, "training.rollout.samplesPerPrompt": 3}
    assumed = {"secondsPerRequest": 0.0, "secondsPerKvToken": 0.0, "graphs": [], **engine}
    ours = site(changes, {"engines": {"fast": assumed}})
    (shape,) = set(ours.shapes())
    seconds = [shape.cost.step(running, 258 * running) for running in (1, 12)]
    assert seconds[0] * 500 / 50 <= (ours.physics().report_seconds or 0) <= seconds[1] * 500 / 50 + 1e-9
