"""Samples shared by ranks: gradients must be those of one process, whatever ranks share which samples."""

import itertools
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replace_fields

from rljob_runtime.samples import Group
from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.support.runtime.families import family_model
from tests.support.runtime.hdp_steps import (
    Case,
    FirstShare,
    Gradients,
    Kind,
    Random,
    assert_same_metrics,
    run_plans,
    take_step,
    worst,
)  # fmt: skip
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.tiny_models import hdp_model, tiny_model
from tests.support.runtime.trainer_ranks import SERVED, groups, model_folder, trainer_job, with_ranks, worker

RANKS = 8
EXACT = 1e-14
KINDS: tuple[Kind, ...] = ("allGather", "ulysses")
LOSSES: dict[str, dict[str, Any]] = {
    "clip, kl and entropy": {"kl": {"coefficient": 0.1}, "entropyCoefficient": 0.01},
    "decoupled by sequences, sequence-mean": {
        "policyLoss": {"decoupledClip": {"level": "sequence"}},
        "aggregation": "sequence-mean",
    },
    "decoupled by tokens": {"policyLoss": {"decoupledClip": {"level": "token"}}},
    "ratios and weights of whole responses": {
        "policyLoss": {"gspo": {"low": 0.2, "high": 0.2}},
        "rolloutCorrection": {"level": "sequence"},
        "aggregation": "sequence-mean",
    },
    "reinforce, fixed-length": {
        "policyLoss": {"truncatedReinforce": {}},
        "normalizeByStd": False,
        "aggregation": "fixed-length",
    },
}

pytestmark = pytest.mark.timeout(300)

Step = tuple[StepMetrics, list[Gradients]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("hdp") / "model")


@pytest.fixture(scope="module")
def alone(ranks: RankProcesses) -> Any:
    """What one process makes of a case; made once for all that ask."""
    known: dict[str, Step] = {}

    def step(case: Case) -> Step:
        if repr(case) not in known:
            known[repr(case)] = ranks.run(1, take_step, case)[0]
        return known[repr(case)]

    return step


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_one_process(
    ranks: RankProcesses, alone: Any, model: Path, kind: Kind, seed: int
) -> None:
    """With groups of 1, 2 and 4 ranks in one step."""
    case = Case(model, seed=seed)
    found = ranks.run(4, take_step, replace(case, plans=Random(seed), attention=kind))
    expected = alone(case)
    assert worst(found[0][1], expected[1]) <= EXACT
    for metrics, _ in found:
        assert_same_metrics(metrics, expected[0])


def test_the_check_finds_gradients_of_keys_that_stay_on_their_rank(
    ranks: RankProcesses, alone: Any, model: Path
) -> None:
    broken = Case(model, FirstShare(2), without_others=True)
    assert worst(ranks.run(2, take_step, broken)[0][1], alone(Case(model))[1]) > 0.01


@pytest.mark.parametrize(("name", "kind"), list(zip(LOSSES, itertools.cycle(KINDS), strict=False)))
def test_losses(ranks: RankProcesses, alone: Any, model: Path, name: str, kind: Kind) -> None:
    """Two updates, so that the second one has proximal log-probabilities. A loss is of a rank's own tokens,
    which are the same with either kind of attention: each has one of them."""
    case = Case(model, algorithm=LOSSES[name], batches=2)
    found = ranks.run(4, take_step, replace(case, plans=Random(5), attention=kind))
    expected = alone(case)
    # The second update begins with weights that rounding has moved, and AdamW divides by small numbers.
    assert worst(found[0][1][:1], expected[1][:1]) <= EXACT
    assert worst(found[0][1][1:], expected[1][1:]) <= 1e-7
    assert_same_metrics(found[0][0], expected[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_teacher_of_other_heads(
    ranks: RankProcesses, alone: Any, model: Path, tmp_path: Path, kind: Kind
) -> None:
    """It goes through the same passes, whoever shares them."""
    learned = {"distillation": {"teacher": {"path": "teacher"}}, "kl": {"coefficient": 0.1}}
    teacher = hdp_model(tmp_path / "teacher", "one key head")
    case = Case(model, algorithm=learned, teacher=teacher)
    found = ranks.run(4, take_step, replace(case, plans=Random(5), attention=kind))
    expected = alone(case)
    assert worst(found[0][1], expected[1]) <= EXACT
    assert_same_metrics(found[0][0], expected[0])
    assert expected[0].teacher_kl != 0
    without = alone(Case(model, algorithm={"kl": {"coefficient": 0.1}}))
    assert worst(without[1], expected[1]) > 0.01


def test_a_teacher_that_a_server_has(ranks: RankProcesses, alone: Any, model: Path) -> None:
    """What it said of samples reaches the ranks that share them, and those that take part with nothing to
    train."""
    case = Case(model, algorithm=SERVED, served=True, batches=2)
    found = ranks.run(4, take_step, replace(case, plans=Random(5)))
    expected = alone(case)
    assert worst(found[0][1][:1], expected[1][:1]) <= EXACT
    assert_same_metrics(found[0][0], expected[0])
    assert expected[0].teacher_kl != 0
    assert worst(alone(Case(model, batches=2))[1], expected[1]) > 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "family",
    [
        "llama", "qwen2", "mistral, window 9", "gemma3, window 9", "one key head", "gemma2, window 9",
        "gpt_oss, window 9",
    ],
)  # fmt: skip
def test_model_families(ranks: RankProcesses, alone: Any, tmp_path: Path, family: str, kind: Kind) -> None:
    """Windows reach over the pieces of a sample; one model has fewer key heads than ranks that share. Gemma 2
    caps scores and logits; gpt_oss has sinks, of which a rank has those of its heads with Ulysses."""
    case = Case(hdp_model(tmp_path / "model", family), recompute=family == "llama")
    found = ranks.run(4, take_step, replace(case, plans=FirstShare(4), attention=kind))[0]
    assert worst(found[1], alone(replace(case, recompute=False))[1]) <= EXACT


SHARED_KEYS: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
OF_OTHER_LAYERS = {
    "gemma3n_text": SHARED_KEYS
    | {"activation_sparsity_pattern": [0.5, 0.0] * 2, "vocab_size_per_layer_input": 64},
    "gemma4_text": SHARED_KEYS | {"global_head_dim": 16, "vocab_size_per_layer_input": 64},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", OF_OTHER_LAYERS)
def test_layers_with_keys_and_values_of_others(
    ranks: RankProcesses, alone: Any, tmp_path: Path, family: str, kind: Kind
) -> None:
    case = Case(family_model(tmp_path / "model", family, **OF_OTHER_LAYERS[family]))
    found = ranks.run(2, take_step, replace(case, plans=FirstShare(2), attention=kind, recompute=True))[0]
    assert worst(found[1], alone(case)[1]) <= EXACT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["afmoe", "jetmoe"])
def test_layers_that_view_what_attention_gives(
    ranks: RankProcesses, alone: Any, tmp_path: Path, family: str, kind: Kind
) -> None:
    """In another shape, which needs one order in memory."""
    case = Case(family_model(tmp_path / "model", family), dtype="float32")
    found = ranks.run(4, take_step, replace(case, plans=FirstShare(4), attention=kind))[0]
    assert worst(found[1], alone(case)[1]) <= 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_number_formats(ranks: RankProcesses, alone: Any, tmp_path: Path, family: Any, kind: Kind) -> None:
    folder = tiny_model(tmp_path / "model", family)
    exact = alone(Case(folder, dtype="float32"))[1]
    shared = Case(folder, Random(3), kind, "float32")
    assert worst(ranks.run(4, take_step, shared)[0][1], exact) <= 1e-5
    if family == "qwen3":
        half = alone(Case(folder, dtype="bfloat16"))[1]
        found = ranks.run(4, take_step, replace(shared, dtype="bfloat16"))[0][1]
        # Rounded elsewhere, so that single numbers fall either way.
        assert worst(found, exact) <= 1.25 * worst(half, exact)


@pytest.mark.parametrize("world_size", [3, 5, 6, 7, 8])
def test_world_sizes(ranks: RankProcesses, alone: Any, model: Path, world_size: int) -> None:
    found = ranks.run(world_size, take_step, Case(model, Random(world_size)))[0]
    assert worst(found[1], alone(Case(model))[1]) <= EXACT


def test_random_plans_of_eight_ranks_come_to_their_end(ranks: RankProcesses) -> None:
    assert sum(ranks.run(8, run_plans, 100, 1)) > 800


def test_ranks_with_different_plans_train_nothing(ranks: RankProcesses, model: Path) -> None:
    outcomes = ranks.outcomes(4, take_step, Case(model, Random(1, differing=2)))
    for done, text in outcomes:
        assert not done
        assert "PlansDiffer: step 1: the ranks planned different micro-batches (other than rank 0: 2)" in text


def test_a_rank_that_dies_ends_the_step(ranks: RankProcesses, tmp_path: Path) -> None:
    job = trainer_job()
    folder = model_folder(job, tmp_path / "model")
    began = time.monotonic()
    outcomes = ranks.outcomes(2, _die_in_the_step, folder)
    # Of the 900 seconds that ranks wait for one another; how many it takes depends on what else runs here.
    assert time.monotonic() - began < 150
    assert outcomes[1] == (False, "the process died")
    assert not outcomes[0][0]
    assert "RankLost: step 1: another rank of the trainer ended" in outcomes[0][1]


def _die_in_the_step(rank: int, world_size: int, store: Path, folder: Path) -> None:
    from rljob_runtime.trainer import hdp_attention

    real, calls = hdp_attention.gathered, iter(range(100))

    def gathered(*arguments: Any) -> Any:
        if rank == 1 and next(calls) == 3:
            os._exit(1)
        return real(*arguments)

    with worker(shared_job(2), folder, rank, world_size, store) as trainer:
        hdp_attention.gathered = gathered
        try:
            trainer.train_step(0, 0, groups(4))
        finally:
            hdp_attention.gathered = real


def shared_job(ranks: int, **sharing: Any) -> Any:
    """A job whose longest sample, of 64 tokens, is above what a rank takes."""
    fields = {"contextParallel": sharing} if sharing else {}
    return with_ranks(trainer_job(), ranks, maxTokensPerMicroBatch=32, **fields)


SHARED = {
    "by default": (2, {}),
    "hybrid on three ranks": (3, {"hybrid": {}}),
    "fixed": (4, {"fixed": {"degree": 4}, "attention": "allGather"}),
    "fixed, with a rank left over": (3, {"fixed": {"degree": 2}, "attention": "ulysses"}),
}


@pytest.mark.parametrize("name", SHARED)
def test_samples_above_a_ranks_cap_train(ranks: RankProcesses, tmp_path: Path, name: str) -> None:
    """Whole trainer ranks, with the plans that the job asks for."""
    world_size, sharing = SHARED[name]
    folder = model_folder(trainer_job(), tmp_path / "model")
    expected = ranks.run(1, _two_steps, folder, trainer_job())[0]
    found = ranks.run(world_size, _two_steps, folder, shared_job(world_size, **sharing))[0]
    for one, other in zip(found[0], expected[0], strict=True):
        assert_same_metrics(one, other, rel=2e-4)
    for name, weight in expected[1].items():
        np.testing.assert_allclose(found[1][name], weight, atol=2e-5, err_msg=name)


def _two_steps(
    rank: int, world_size: int, store: Path, folder: Path, job: Any
) -> tuple[list[StepMetrics], Gradients]:
    with worker(job, folder, rank, world_size, store) as trainer:
        metrics = [
            trainer.train_step(step, step, groups(4, seed=step, longest=48) if rank == 0 else None)
            for step in range(2)
        ]
        return metrics, {name: tensor.float().numpy() for name, tensor in trainer.weights()}


def test_fewer_samples_than_ranks_and_none(ranks: RankProcesses, tmp_path: Path) -> None:
    """Of three ranks that share what is too long for one: two samples, then none that has a reward, none at
    all, and many."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    expected = ranks.run(1, _uneven_steps, folder, trainer_job())[0]
    found = ranks.run(3, _uneven_steps, folder, shared_job(3, hybrid={}))[0]
    assert [metrics.samples - metrics.failed for metrics in found] == [2, 0, 0, 14]
    for one, other in zip(found, expected, strict=True):
        assert_same_metrics(one, other, rel=2e-4)


def _uneven_steps(rank: int, world_size: int, store: Path, folder: Path, job: Any) -> list[StepMetrics]:
    failed = [
        replace_fields(each, samples=tuple(replace_fields(one, failure="error") for one in each.samples))
        for each in groups(2)
    ]
    steps: list[list[Group]] = [groups(1, samples=2, longest=48), failed, [], groups(4, longest=48)]
    with worker(job, folder, rank, world_size, store) as trainer:
        return [
            trainer.train_step(step, step, given if rank == 0 else None) for step, given in enumerate(steps)
        ]


def test_a_sample_above_what_all_ranks_hold_is_an_error(ranks: RankProcesses, tmp_path: Path) -> None:
    folder = model_folder(trainer_job(), tmp_path / "model")
    for done, text in ranks.outcomes(2, _too_long, folder):
        assert not done
        assert "tokens, above the 64 that 2 of 2 ranks hold together" in text


def _too_long(rank: int, world_size: int, store: Path, folder: Path) -> None:
    with worker(shared_job(2), folder, rank, world_size, store) as trainer:
        trainer.train_step(0, 0, groups(1, longest=400, seed=2))
