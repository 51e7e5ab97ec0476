"""Adapters of layers that tensor groups split: what is trained is what one rank trains."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from rljob_api import RLJob
from rljob_runtime.data.tokenizer import CharacterTokenizer
from rljob_runtime.driver.export import export, export_adapter, keep_model_files
from tests.runtime.test_trainer_tensor import (
    EXACT,
    KL,
    PAIRS,
    PASS_TOKENS,
    Site,
    Trained,
    assert_all_same,
    assert_same,
    job_of,
    work,
)
from tests.support.runtime.families import family_model
from tests.support.runtime.hdp_steps import Case, Random, assert_same_metrics, take_step, worst
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.trainer_ranks import model_folder

RANKS = 4
ADAPTED: dict[str, Any] = {
    "adapter": {"rank": 4, "alpha": 8},
    "model": {"headDim": 32},
    "rollout": {"engine": {"vllm": {}}},
}
MODELS: dict[str, tuple[int, str, dict[str, Any], list[str] | None]] = {
    # number of ranks, a family and its fields, targetModules
    "all layers": (4, "qwen3", {}, None),
    "biases, also of what is added up": (2, "llama", {"attention_bias": True, "mlp_bias": True}, None),
    "one layer of each kind": (2, "qwen2", {}, ["k_proj", "mlp.down_proj"]),
    "samples that pairs share": (4, "qwen3", {}, None),
    "windows": (4, "gemma3_text", {}, ["v_proj", "o_proj"]),
    "beside experts": (2, "qwen3_moe", {}, ["q_proj", "o_proj"]),
}
CHANGES: dict[str, dict[str, Any]] = {
    "one layer of each kind": {"recompute": True},
    "samples that pairs share": {"plans": Random(3), "copy": 2},
    "windows": {"plans": Random(1), "attention": "ulysses"},
}
"""What of `Case` is another one on several ranks."""

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_one_rank(ranks: RankProcesses, tmp_path: Path, name: str) -> None:
    """Of A and of B, with a penalty against the model without them."""
    count, family, fields, layers = MODELS[name]
    folder = family_model(tmp_path / "model", family, **fields)
    # Rank 1 cannot be divided over pairs.
    adapter = {"rank": 1 if layers else 4, "alpha": 12, "targetModules": layers}
    updates = 2 if name == "all layers" else 1
    case = Case(folder, algorithm=KL, pass_tokens=PASS_TOKENS, batches=updates, adapter=adapter)
    metrics, gradients = ranks.run(1, take_step, case)[0]
    assert len(gradients[0]) == 2 * 2 * (7 if layers is None else 2)
    assert metrics.kl > 1e-3
    found = ranks.run(count, take_step, replace(case, tensor=2, **CHANGES.get(name, {})))
    assert worst(found[0][1][:1], gradients[:1]) <= EXACT
    # A second update begins with weights that rounding has moved, and AdamW divides by small numbers.
    assert worst(found[0][1], gradients) <= 1e-12
    for each, _ in found:
        assert_same_metrics(each, metrics)
        assert each.loss == pytest.approx(metrics.loss, rel=EXACT, abs=1e-15)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    found = Site(tmp_path_factory.mktemp("adapter"))
    model_folder(adapted_job(1, {}), found.model)
    return found


def adapted_job(ranks: int, parallel: dict[str, Any], **changes: Any) -> RLJob:
    return job_of(ranks, parallel, ADAPTED | changes)


@pytest.fixture(scope="module")
def alone(ranks: RankProcesses, site: Site) -> Trained:
    """Two steps of two updates on one rank; its checkpoint is "one"."""
    found: Trained = ranks.run(1, work, site, adapted_job(1, {}), (0, 2), "", "one")[0]
    return found


@pytest.fixture(scope="module")
def two_pairs(ranks: RankProcesses, site: Site) -> list[Trained]:
    """The steps of `alone` on two pairs; their checkpoint is "two pairs"."""
    return ranks.run(4, work, site, adapted_job(4, PAIRS), (0, 2), "", "two pairs")


def test_it_begins_as_on_one_rank(ranks: RankProcesses, site: Site) -> None:
    first, paired = (
        ranks.run(count, work, site, adapted_job(count, parallel), (0, 0))[0].weights
        for count, parallel in ((1, {}), (2, PAIRS))
    )
    assert first.keys() == paired.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(paired[name], value, err_msg=name)
        assert value.any() == ("lora_A" in name), name


def test_groups_train_what_one_rank_trains(alone: Trained, two_pairs: list[Trained]) -> None:
    assert_all_same(two_pairs, alone)
    assert all("lora" in name for name in two_pairs[0].weights)


def test_matrices_that_are_not_split_stay_one_in_a_group(two_pairs: list[Trained]) -> None:
    whole = {name for name in two_pairs[0].whole_here if "exp_avg_sq of" in name}
    # A of queries, keys, values, gate and up, and B of the others, of two layers.
    assert len(whole) == 2 * 7
    for first, second in (two_pairs[:2], two_pairs[2:]):
        for name, value in first.whole_here.items():
            np.testing.assert_array_equal(second.whole_here[name], value, err_msg=name)


def test_in_16_bits(ranks: RankProcesses, site: Site) -> None:
    """The adapter beside a model in bfloat16, moments too, which are rounded at random."""
    changes = {"policy": {"dtype": "bfloat16"}, "optimizer": {"stateFormat": "bfloat16"}}
    alone = ranks.run(1, work, site, adapted_job(1, {}, **changes))[0]
    paired = ranks.run(2, work, site, adapted_job(2, PAIRS, **changes))
    for one, other in zip(paired[0].metrics, alone.metrics, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-2)
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-2)
    for name, value in paired[0].whole_here.items():
        np.testing.assert_array_equal(paired[1].whole_here[name], value, err_msg=name)


def test_checkpoints_fit_other_groups(
    ranks: RankProcesses, site: Site, alone: Trained, two_pairs: list[Trained]
) -> None:
    expected = ranks.run(1, work, site, adapted_job(1, {}), (2, 3), "one")[0]
    for count, parallel, begin in ((2, PAIRS, "one"), (1, {}, "two pairs"), (3, {}, "two pairs")):
        job = adapted_job(count, parallel)
        assert_same(ranks.run(count, work, site, job, (2, 3), begin)[0], expected)


def test_exports_have_what_was_published(site: Site, two_pairs: list[Trained], tmp_path: Path) -> None:
    """The adapter in peft's form, and the model with it."""
    job, run = adapted_job(4, PAIRS), tmp_path / "run"
    run.mkdir()
    (run / "job.yaml").write_text(yaml.safe_dump(job.model_dump(by_alias=True, exclude_none=True)))
    keep_model_files(site.model, CharacterTokenizer("abcdefgh"), run, job.spec.training.adapter)
    (run / "checkpoints").symlink_to(site.checkpoints("two pairs"))
    export_adapter(run, tmp_path / "adapter")
    alone, published = load_file(tmp_path / "adapter" / "adapter_model.safetensors"), two_pairs[0].published
    assert alone.keys() == published.keys()
    for name, value in published.items():
        np.testing.assert_array_equal(alone[name], value, err_msg=name)
    export(run, tmp_path / "model")
    merged = load_file(tmp_path / "model" / "model.safetensors")
    base = load_file(site.model / "model.safetensors")
    for layer in ("self_attn.q_proj", "mlp.down_proj"):
        first, second = (
            alone[f"base_model.model.model.layers.1.{layer}.lora_{matrix}.weight"] for matrix in "AB"
        )
        name = f"model.layers.1.{layer}.weight"
        np.testing.assert_allclose(merged[name], base[name] + 2 * second @ first, rtol=1e-5, atol=1e-6)
