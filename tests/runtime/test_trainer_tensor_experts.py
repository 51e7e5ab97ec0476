"""Experts of which each rank of a tensor group has a part: what is trained is what one rank trains."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file

from tests.runtime.test_router_corrections import corrections
from tests.runtime.test_trainer_tensor import (
    EXACT,
    KL,
    PAIRS,
    PASS_TOKENS,
    Site,
    Trained,
    assert_all_same,
    assert_exported,
    assert_same,
    job_of,
    work,
)
from tests.support.runtime.families import family_model
from tests.support.runtime.hdp_steps import Case, assert_same_metrics, take_step, worst
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.trainer_ranks import EXPERTS, model_folder, trainer_job

RANKS = 6
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"mlp_only_layers": [0]},
    "mixtral": {},
    "qwen2_moe": {"use_sliding_window": False},
    "glm4_moe": {},
    "ernie4_5_moe": {},
}
"""One with a dense layer too; one whose router weighs experts in float32; one with a shared expert that its
plan does not name; one with a shared expert that it splits, and a router that has corrections; the like, with
corrections that are parameters."""

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("how", ["grouped", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_one_rank(ranks: RankProcesses, tmp_path: Path, family: str, how: Any) -> None:
    """On one pair, and on two pairs with different samples, with a reference."""
    folder = family_model(tmp_path / "model", family, **FAMILIES[family])
    assert_gradients(ranks, Case(folder, algorithm=KL, pass_tokens=PASS_TOKENS, experts=how))


@pytest.mark.parametrize("how", ["grouped", "eager"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_rank_none_of_whose_experts_is_chosen(
    ranks: RankProcesses, tmp_path: Path, how: Any, recompute: bool
) -> None:
    """It takes part in the group's sums, and its experts have gradients of zero."""
    folder = one_sided(family_model(tmp_path / "model", "glm4_moe"))
    case = Case(folder, algorithm=KL, pass_tokens=PASS_TOKENS, experts=how, recompute=recompute)
    gradients = assert_gradients(ranks, case)
    chosen = next(each for name, each in gradients.items() if name.endswith("experts.down_proj"))
    assert np.abs(chosen[:2]).min(axis=(1, 2)).max() > 0
    assert not chosen[2:].any()


def one_sided(folder: Path) -> Path:
    """Let every token choose the first two of four experts of a model."""
    tensors = load_tensors(file := folder / "model.safetensors")
    for name in corrections(tensors):
        tensors[name][:2] = 100.0
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def test_layers_that_are_compiled(ranks: RankProcesses, tmp_path: Path) -> None:
    """In float32, in which this router computes; all experts that are chosen are one rank's."""
    folder = one_sided(family_model(tmp_path / "model", "glm4_moe", first_k_dense_replace=0))
    case = Case(folder, dtype="float32", pass_tokens=PASS_TOKENS)
    metrics, gradients = ranks.run(1, take_step, case)[0]
    found = ranks.run(2, take_step, replace(case, tensor=2, compiled=True))
    assert worst(found[0][1], gradients) <= 1e-5
    for each, _ in found:
        assert_same_metrics(each, metrics, 1e-5, near=1e-6)


def test_one_expert_on_each_rank(ranks: RankProcesses, tmp_path: Path) -> None:
    folder = family_model(tmp_path / "model", "qwen3_moe", num_experts=2)
    assert_gradients(ranks, Case(folder, pass_tokens=PASS_TOKENS))


def assert_gradients(ranks: RankProcesses, case: Case) -> Any:
    """Those of ranks are those of one, which are returned."""
    metrics, gradients = ranks.run(1, take_step, case)[0]
    for world_size in (2, 4):
        found = ranks.run(world_size, take_step, replace(case, tensor=2))
        assert worst(found[0][1], gradients) <= EXACT, world_size
        for each, _ in found:
            assert_same_metrics(each, metrics)
    return gradients[0]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    found = Site(tmp_path_factory.mktemp("experts"))
    model_folder(trainer_job(**EXPERTS), found.model)
    return found


@pytest.fixture(scope="module")
def alone(ranks: RankProcesses, site: Site) -> Trained:
    """Two steps of two updates on one rank; its checkpoint is "one"."""
    found: Trained = ranks.run(1, work, site, job_of(1, {}, EXPERTS), (0, 2), "", "one")[0]
    return found


@pytest.fixture(scope="module")
def one_more(ranks: RankProcesses, site: Site, alone: Trained) -> Trained:
    """A step further on one rank."""
    found: Trained = ranks.run(1, work, site, job_of(1, {}, EXPERTS), (2, 3), "one")[0]
    return found


@pytest.fixture(scope="module")
def two_pairs(ranks: RankProcesses, site: Site) -> list[Trained]:
    """The steps of `alone` on two pairs; their checkpoint is "two pairs"."""
    return ranks.run(4, work, site, job_of(4, PAIRS, EXPERTS), (0, 2), "", "two pairs")


WAYS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "one pair": (2, PAIRS, {}),
    "two pairs, each with a copy": (4, PAIRS | {"shardGroupSize": 2}, {}),
    "three pairs, whose parts are not even": (6, PAIRS, {}),
    "one by one": (4, PAIRS, {"policy": {"experts": "eager"}}),
    "weights held": (4, PAIRS, {"compute": {"holdWeights": True}}),
    "computed again": (4, PAIRS, {"policy": {"activationCheckpointing": "full"}}),
    "partly computed again": (4, PAIRS, {"policy": {"activationCheckpointing": "selective"}}),
}


@pytest.mark.parametrize("name", WAYS)
def test_groups_train_what_one_rank_trains(
    ranks: RankProcesses, site: Site, alone: Trained, name: str
) -> None:
    count, parallel, changes = WAYS[name]
    assert_all_same(ranks.run(count, work, site, job_of(count, parallel, EXPERTS | changes)), alone)


def test_two_pairs_train_what_one_rank_trains(alone: Trained, two_pairs: list[Trained]) -> None:
    assert_all_same(two_pairs, alone)
    # Routers among them.
    assert any(name.endswith("mlp.gate.weight") for name in two_pairs[0].whole_here)
    for first, second in (two_pairs[:2], two_pairs[2:]):
        for name, value in first.whole_here.items():
            np.testing.assert_array_equal(second.whole_here[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("count", "parallel", "begin"),
    [(2, PAIRS, "one"), (1, {}, "two pairs"), (3, {}, "two pairs"), (6, PAIRS, "two pairs")],
)
def test_checkpoints_fit_other_groups(
    ranks: RankProcesses,
    site: Site,
    one_more: Trained,
    two_pairs: list[Trained],
    count: int,
    parallel: dict[str, Any],
    begin: str,
) -> None:
    job = job_of(count, parallel, EXPERTS)
    assert_same(ranks.run(count, work, site, job, (2, 3), begin)[0], one_more)


def test_an_export_has_what_was_published(site: Site, two_pairs: list[Trained], tmp_path: Path) -> None:
    assert_exported(site, two_pairs[0], tmp_path)
