"""Which sizes and policies are compared, and how engines of each differ."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.manifest.load import ManifestError
from rljob_runtime.simulate.assumptions import Assumptions
from rljob_runtime.simulate.compare import best_sizes, compare, own_policy, policies
from rljob_runtime.simulate.site import Sizes
from rljob_runtime.trace.forecast.simulate import Options, forecast
from rljob_runtime.trace.forecast.text import timeline
from rljob_runtime.trace.forecast.workloads import drawn
from tests.support.simulated.small_jobs import SMALL, manifest, site

QUICK = {
    "trainer": {"secondsPerStep": 0.1, "secondsPerToken": 1e-6},
    "lengths": {"betweenPrompts": 1.0},
    "weightSyncSeconds": 0.1,
}
"""Assumptions with which a step takes about as long as its responses do."""


def test_sizes_are_found_for_a_number_of_accelerators(tmp_path: Path) -> None:
    text = forecast(Options(manifest(tmp_path), size=6, seeds=1))
    assert text.startswith("Workers of each pool with 6 accelerators, the fastest first, of ")
    assert " sizes that were tried:\ntrainer  fast  heavy  samples/s" in text
    assert "\n1 * " in text and text.count(" *") == 1 and "\n* the job's\n" in text
    assert "The job has 1 trainer, 2 fast and 1 heavy workers: 4 accelerators." in text
    with pytest.raises(ManifestError, match="1 accelerator is too few for one trainer worker and one engine"):
        forecast(Options(manifest(tmp_path), size=1, seeds=1))
    assert "the job's" not in forecast(Options(manifest(tmp_path), size=3, seeds=1)).split("\n\n")[0]


def test_no_size_has_more_accelerators_than_there_are() -> None:
    where = site({"accelerator": "nvidia", "pools.heavyRollout.acceleratorsPerWorker": 2})
    found = best_sizes(where, drawn, [0], 9).fastest
    assert any(each.sizes.heavy for each in found)
    for each in found:
        assert each.sizes.accelerators(where.spec) <= 9
        assert each.sizes.trainer >= 1 and each.sizes.fast + each.sizes.heavy >= 1
    assert found == sorted(found, key=lambda each: -each.samples_per_second)


@pytest.mark.parametrize(
    ("heavy", "own", "assumed"),
    [
        (4, (4, 0, 2), {}),
        (4, (1, 2, 1), QUICK),
        (2, (6, 0, 3), {}),
        (4, (1, 2, 1), {**QUICK, "engines": {"heavy": {"fixedSeconds": 0.004, "secondsPerRequest": 1e-4}}}),
    ],
    ids=["no fast pool", "a quick trainer", "two accelerators a worker", "both pools"],
)
def test_no_sizes_are_much_faster_than_those_that_are_found(
    heavy: int, own: tuple[int, int, int], assumed: dict[str, Any]
) -> None:
    """With 12 accelerators, beside all sizes that have no accelerator left, or no fast pool."""
    where = site(
        {
            "accelerator": "nvidia",
            "training.schedule.promptsPerBatch": 16,
            "pools.trainer.replicas": own[0],
            "pools.fastRollout.replicas": own[1],
            "pools.heavyRollout": {"replicas": own[2], "acceleratorsPerWorker": heavy},
        },
        steps=4,
    )
    where = replace(where, assumptions=Assumptions.model_validate(assumed))

    def rate(sizes: Sizes) -> float:
        sized = replace(where, spec=sizes.applied(where.spec))
        return sized.run(drawn(sized, 0)).samples_per_second

    found = best_sizes(where, drawn, [0], 12)
    splits = [(trainer, count) for trainer in range(1, 12) for count in range((12 - trainer) // heavy + 1)]
    known = {
        Sizes(trainer, fast, count)
        for trainer, count in splits
        for fast in {12 - trainer - heavy * count, 0}
        if fast + count
    }
    best = max(map(rate, known))
    assert found.fastest[0].samples_per_second >= max(0.98 * best, rate(Sizes(*own)))
    assert Sizes(*own) in {each.sizes for each in found.fastest}
    assert found.tried <= 48


def test_of_sizes_that_are_equally_fast_the_first_has_the_fewest_heavy_workers() -> None:
    """Engines of both pools are alike."""
    found = best_sizes(site({"accelerator": "nvidia"}), drawn, [0], 8).fastest
    ties = [each.sizes for each in found if each.samples_per_second == found[0].samples_per_second]
    assert len(ties) > 1 and ties == sorted(ties, key=lambda sizes: sizes.heavy)


def test_no_trainer_has_ranks_without_samples() -> None:
    """An update has 4 samples, and training is what takes long."""
    where = site({"training.schedule.promptsPerBatch": 2})
    slow = Assumptions.model_validate({"trainer": {"secondsPerToken": 1.0}, "weightSyncSeconds": 0.0})
    found = best_sizes(replace(where, assumptions=slow), drawn, [0], 40).fastest
    assert found[0].sizes.trainer == max(each.sizes.trainer for each in found) == 4


@pytest.mark.parametrize(
    ("changes", "size", "trainers"),
    [
        ({"training.parallel": {"tensorParallel": 2}, "pools.trainer.replicas": 2}, 8, {2, 4, 6}),
        ({"training.parallel": {"shardGroupSize": 3}, "pools.trainer.replicas": 3}, 8, {3, 6}),
        ({"training.parallel": {"maxTokensPerMicroBatch": 20}, "pools.trainer.replicas": 4}, 8, {4, 5, 6, 7}),
        ({"training.rollout": SMALL["training.rollout"] | {"routing": {"probe": {}}}}, 6, {1, 2, 3, 4}),
    ],
    ids=["tensor groups", "shard groups", "samples that ranks share", "both pools needed"],
)
def test_only_sizes_are_tried_that_the_job_may_have(
    changes: dict[str, Any], size: int, trainers: set[int]
) -> None:
    changes = {"accelerator": "nvidia", "training.schedule.promptsPerBatch": 8, **changes}
    where = site(changes)
    found = best_sizes(where, drawn, [0], size).fastest
    assert found and {each.sizes.trainer for each in found} <= trainers
    for each in found:
        pools = {
            "pools.trainer.replicas": each.sizes.trainer,
            "pools.fastRollout.replicas": each.sizes.fast,
            "pools.heavyRollout.replicas": each.sizes.heavy,
        }
        # Refused otherwise, as `rljob validate` and the API server would.
        site({**changes, **pools})


def test_a_size_with_which_no_pools_fit_the_job_says_why(tmp_path: Path) -> None:
    wide = {"training.parallel": {"tensorParallel": 4}, "pools.trainer.replicas": 4}
    with pytest.raises(ManifestError, match=r"no pools of 4 accelerators fit .*tensorParallel must divide"):
        forecast(Options(manifest(tmp_path, wide | {"accelerator": "nvidia"}), size=4, seeds=1))


@pytest.mark.parametrize("size", [12289, 100_000])
def test_more_accelerators_than_pools_may_have_are_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(ManifestError, match=f"{size} accelerators are more than a job may have: 12288, with"):
        forecast(Options(manifest(tmp_path, {"accelerator": "nvidia"}), size=size, seeds=1))


def test_a_slow_trainer_gets_more_workers() -> None:
    def best(per_token: float) -> Sizes:
        assumed = Assumptions.model_validate(
            {"trainer": {"secondsPerStep": 0, "secondsPerToken": per_token}, "weightSyncSeconds": 0}
        )
        return best_sizes(replace(site(), assumptions=assumed), drawn, [0], 8).fastest[0].sizes

    assert best(1.0).trainer > best(1e-6).trainer == 1


@pytest.mark.parametrize(
    ("changes", "probe"),
    [
        pytest.param({}, True, id="two pools"),
        pytest.param({"pools.heavyRollout.replicas": 0}, False, id="one pool"),
        pytest.param({"training.rollout.samplesPerPrompt": 1}, False, id="no response beside its probe"),
        pytest.param({"training.schedule.promptsPerBatch": 4}, False, id="a fifth of the prompts is none"),
    ],
)
def test_policies_are_compared_that_the_job_may_have(changes: dict[str, Any], probe: bool) -> None:
    found = policies(site({"training.schedule.promptsPerBatch": 5} | changes).spec)
    assert found == ["adjacent", "interleaved", "leastInFlight", *["probe"] * probe, "adaptive"]


def test_each_policy_gets_the_same_work() -> None:
    found = compare(site(), drawn, [1, 2], ["adjacent", "leastInFlight"])
    assert [each.policy for each in found] == ["adjacent", "leastInFlight"]
    assert len({tuple(outcome.tokens for outcome in each.outcomes) for each in found}) == 1
    assert found[0].spread(lambda outcome: outcome.wall).deviation > 0


def test_the_own_policy_is_the_one_that_the_job_would_run() -> None:
    assert own_policy(site({"training.rollout.routing": {"probe": {"heavyShare": 0.5}}}).spec) == "probe"
    single = {"pools.fastRollout.replicas": 1, "pools.heavyRollout.replicas": 0}
    assert own_policy(site(single).spec) == "adaptive"


def test_heavy_engines_on_more_accelerators_are_faster() -> None:
    where = site({"accelerator": "nvidia", "pools.heavyRollout.acceleratorsPerWorker": 4})
    fast, _, heavy = where.shapes()
    assert heavy.cost.step(8, 1000) == pytest.approx(fast.cost.step(8, 1000) / 4**0.7)
    assert heavy.kv_tokens == 4 * (fast.kv_tokens or 0)


def test_a_timeline_has_a_line_for_each_engine() -> None:
    [first] = compare(site(), drawn, [0], ["adjacent"])
    outcome = replace(
        first.outcomes[0], wall=64.0, lines=([(0.0, 8), (32.0, 1), (48.0, 0)], [(0.0, 0)], [(63.5, 4)])
    )
    lines = timeline(outcome, ["fast", "fast", "heavy"], [8, 8, 8]).split("\n")
    assert lines[0] == f"    fast-0 │{'█' * 32}{'░' * 16}{' ' * 16}│"
    assert lines[1] == f"    fast-1 │{' ' * 64}│"
    assert lines[2] == f"   heavy-0 │{' ' * 63}▒│"
    assert lines[3].split() == ["0", "s", "64", "s"]
