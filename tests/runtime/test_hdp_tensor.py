"""Samples shared by tensor groups: gradients and steps must be those of one process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replace_fields

from rljob_api import RLJob
from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.support.runtime.families import family_model
from tests.support.runtime.hdp_steps import (
    Case,
    FirstShare,
    Gradients,
    Kind,
    Random,
    assert_same_metrics,
    take_step,
    worst,
)  # fmt: skip
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.tiny_models import hdp_model, tiny_model
from tests.support.runtime.trainer_ranks import groups, model_folder, trainer_job, with_ranks, worker

RANKS = 8
EXACT = 1e-14
KINDS: tuple[Kind, ...] = ("allGather", "ulysses")
ALL: dict[str, Any] = {"kl": {"coefficient": 0.1}, "entropyCoefficient": 0.01}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With four query heads and two key heads, of which a rank of a pair has two and one."""
    return tiny_model(tmp_path_factory.mktemp("tensor") / "model")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("world_size", "seed"), [(4, 0), (4, 1), (4, 2), (6, 3), (8, 4)], ids=lambda each: str(each)
)
def test_gradients_are_those_of_one_process(
    ranks: RankProcesses, model: Path, kind: Kind, world_size: int, seed: int
) -> None:
    """Of two, three and four pairs of ranks, alone and by twos (and with all-gather by fours) in one step."""
    case = Case(model, seed=seed, algorithm=ALL)
    largest = 2 if kind == "ulysses" else None
    shared = replace(case, plans=Random(seed, largest=largest), attention=kind, tensor=2)
    metrics, gradients = ranks.run(1, take_step, case)[0]
    found = ranks.run(world_size, take_step, shared)
    assert worst(found[0][1], gradients) <= EXACT
    for each, _ in found:
        assert_same_metrics(each, metrics)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["tied", "qwen2", "llama", "mistral, window 9", "gemma3, window 9"])
def test_model_families(ranks: RankProcesses, tmp_path: Path, family: str, kind: Kind) -> None:
    """Two pairs share every sample: windows reach over its pieces, and norms of heads see a part of the heads
    and of the tokens. Some members have no token that is trained."""
    folder = tmp_path / "model"
    folder = tiny_model(folder, tied=True) if family == "tied" else hdp_model(folder, family)
    case = Case(folder)
    shared = replace(case, plans=FirstShare(2), attention=kind, tensor=2, copy=2, recompute=family == "llama")
    expected = ranks.run(1, take_step, case)[0][1]
    assert worst(ranks.run(4, take_step, shared)[0][1], expected) <= EXACT


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe"])
def test_experts_by_parts(ranks: RankProcesses, tmp_path: Path, family: str) -> None:
    """Each rank of a pair has half of the experts, and tokens of its part of a sample alone; one family has a
    shared expert, of which each rank has half too."""
    case = Case(family_model(tmp_path / "model", family), algorithm=ALL)
    metrics, gradients = ranks.run(1, take_step, case)[0]
    found = ranks.run(4, take_step, replace(case, plans=Random(1), tensor=2))
    assert worst(found[0][1], gradients) <= EXACT
    for each, _ in found:
        assert_same_metrics(each, metrics)


def test_a_teacher_and_several_updates(ranks: RankProcesses, model: Path, tmp_path: Path) -> None:
    """It goes through the same passes; the second update has proximal log-probabilities."""
    learned = {
        "policyLoss": {"decoupledClip": {"level": "sequence"}},
        "aggregation": "sequence-mean",
        "distillation": {"teacher": {"path": "teacher"}},
    }
    teacher = hdp_model(tmp_path / "teacher", "llama")
    case = Case(model, algorithm=learned | ALL, teacher=teacher, batches=2)
    metrics, gradients = ranks.run(1, take_step, case)[0]
    found = ranks.run(6, take_step, replace(case, plans=Random(5), tensor=2))
    assert worst(found[0][1][:1], gradients[:1]) <= EXACT
    # The second one begins with weights that rounding has moved, and AdamW divides by small numbers.
    assert worst(found[0][1][1:], gradients[1:]) <= 1e-7
    assert_same_metrics(found[0][0], metrics)
    assert metrics.teacher_kl != 0


def test_the_check_finds_gradients_of_keys_that_stay_on_their_rank(ranks: RankProcesses, model: Path) -> None:
    broken = Case(model, FirstShare(2), tensor=2, without_others=True)
    assert worst(ranks.run(4, take_step, broken)[0][1], ranks.run(1, take_step, Case(model))[0][1]) > 0.01


def test_number_formats(ranks: RankProcesses, model: Path) -> None:
    exact = ranks.run(1, take_step, Case(model, dtype="float32"))[0][1]
    half = ranks.run(1, take_step, Case(model, dtype="bfloat16"))[0][1]
    shared = Case(model, Random(3), tensor=2, dtype="float32")
    assert worst(ranks.run(4, take_step, shared)[0][1], exact) <= 1e-5
    found = ranks.run(4, take_step, replace(shared, dtype="bfloat16"))[0][1]
    # Rounded elsewhere, so that single numbers fall either way.
    assert worst(found, exact) <= 1.25 * worst(half, exact)


def test_ranks_with_different_plans_train_nothing(ranks: RankProcesses, model: Path) -> None:
    """One data rank plans otherwise: both ranks of it are named."""
    for done, text in ranks.outcomes(4, take_step, Case(model, Random(1, differing=1), tensor=2)):
        assert not done
        assert (
            "PlansDiffer: step 1: the ranks planned different micro-batches (other than rank 0: 2, 3)" in text
        )


def shared_job(ranks: int, **parallel: Any) -> RLJob:
    """A job whose longest sample, of 64 tokens, is above what a pair of ranks takes."""
    fields = {"maxTokensPerMicroBatch": 32, "tensorParallel": 2, **parallel}
    return with_ranks(trainer_job(), ranks, **fields)


SHARED: dict[str, tuple[int, dict[str, Any]]] = {
    "by default": (4, {}),
    "hybrid on three pairs": (6, {"contextParallel": {"hybrid": {}}}),
    "fixed": (8, {"contextParallel": {"fixed": {"degree": 4}, "attention": "allGather"}}),
    "fixed by Ulysses, with a pair left over": (
        6,
        {"contextParallel": {"fixed": {"degree": 2}, "attention": "ulysses"}},
    ),
    "each pair with a copy": (4, {"contextParallel": {"hybrid": {}}, "shardGroupSize": 2}),
}


@pytest.mark.parametrize("name", SHARED)
def test_samples_above_the_cap_of_a_pair_train(ranks: RankProcesses, tmp_path: Path, name: str) -> None:
    """Whole trainer ranks, with the plans that the job asks for."""
    world_size, parallel = SHARED[name]
    folder = model_folder(trainer_job(), tmp_path / "model")
    metrics, weights = ranks.run(1, _three_steps, folder, trainer_job())[0]
    found = ranks.run(world_size, _three_steps, folder, shared_job(world_size, **parallel))
    for one, other in zip(found[0][0], metrics, strict=True):
        assert_same_metrics(one, other, rel=2e-4)
    for weight, value in weights.items():
        np.testing.assert_allclose(found[0][1][weight], value, atol=2e-5, err_msg=weight)
    for each in zip(*(each for each, _ in found), strict=True):
        assert len({(one.loss, one.grad_norm, one.tokens, one.passes.imbalance) for one in each}) == 1


def _three_steps(
    rank: int, world_size: int, store: Path, folder: Path, job: RLJob
) -> tuple[list[StepMetrics], Gradients]:
    """Of few samples, of none to train, and of many."""
    failed = [
        replace_fields(each, samples=tuple(replace_fields(one, failure="error") for one in each.samples))
        for each in groups(2)
    ]
    steps = [groups(1, samples=2, longest=48), failed, groups(4, longest=48)]
    with worker(job, folder, rank, world_size, store) as trainer:
        metrics = [
            trainer.train_step(step, step, given if rank == 0 else None) for step, given in enumerate(steps)
        ]
        return metrics, {name: tensor.float().numpy() for name, tensor in trainer.weights()}


def test_a_sample_above_what_all_pairs_hold_is_an_error(ranks: RankProcesses, tmp_path: Path) -> None:
    folder = model_folder(trainer_job(), tmp_path / "model")
    for done, text in ranks.outcomes(4, _too_long, folder):
        assert not done
        assert "tokens, above the 64 that 2 of 2 tensor groups of 2 ranks hold together" in text


def _too_long(rank: int, world_size: int, store: Path, folder: Path) -> None:
    with worker(shared_job(4), folder, rank, world_size, store) as trainer:
        trainer.train_step(0, 0, groups(1, longest=400, seed=2))


def test_heads_that_exchanging_ranks_do_not_divide(ranks: RankProcesses, tmp_path: Path) -> None:
    """Four, of which each rank of a pair has two."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    for done, text in ranks.outcomes(8, _set_up, folder, {"fixed": {"degree": 4}, "attention": "ulysses"}):
        assert not done
        assert "attention heads (4, by parallel.tensorParallel 2 on each rank) are divisible by" in text


def _set_up(rank: int, world_size: int, store: Path, folder: Path, sharing: dict[str, Any]) -> None:
    with worker(shared_job(8, contextParallel=sharing), folder, rank, world_size, store):
        pass
