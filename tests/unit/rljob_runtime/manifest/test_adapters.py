"""Adapters against the models that they are for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from rljob_api import RLJob
from rljob_runtime.manifest.adapters import check_adapter, doubtful_rank, model_size
from rljob_runtime.manifest.checks import check_job
from rljob_runtime.manifest.trainer_memory import ModelSize, state_bytes
from tests.support.jobs import job

NARROW = {"training.model.random.keyValueHeads": 1}
"""One head of keys and values, with 32 features."""
EXPERTS = {"training.model.random": {"architecture": "qwen3_moe", "experts": {}}}
FOLDER = {"training.model": {"path": "model"}}
TARGETS = "spec.training.adapter.targetModules"
RANK = "spec.training.adapter.rank"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    weights = {"model.layers.0.mlp.c_fc.weight": np.zeros((4, 6), np.float32)}
    save_file(weights, tmp_path / "model" / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "adapter", "config", "where", "said"),
    [
        ({}, {}, {}, None, ""),
        ({}, {"targetModules": ["q_proj", "up_proj"]}, {}, None, ""),
        ({}, {"targetModules": ["c_fc"]}, {}, TARGETS, 'no linear layer "c_fc": it has down_proj, gate_proj'),
        (EXPERTS, {}, {}, None, ""),
        (
            EXPERTS,
            {"targetModules": ["gate_proj"]},
            {},
            TARGETS,
            "take some of k_proj, o_proj, q_proj, v_proj",
        ),
        (FOLDER, {}, {}, None, ""),
        (FOLDER, {"targetModules": ["c_fc"]}, {}, None, ""),
        (FOLDER, {"targetModules": ["q_proj"]}, {}, TARGETS, 'no linear layer "q_proj": it has c_fc'),
        (
            FOLDER,
            {},
            {"model_type": "mixtral", "num_local_experts": 8},
            "spec.training.adapter",
            "which tensors of mixtral (config.json) are its experts', which get no adapter, cannot be told",
        ),
        (FOLDER, {}, {"model_type": "mixtral", "num_local_experts": 0}, None, ""),
    ],
)
def test_what_is_wrong_with_an_adapter(
    folder: Path,
    changes: dict[str, Any],
    adapter: dict[str, Any],
    config: dict[str, Any],
    where: str | None,
    said: str,
) -> None:
    parsed = RLJob.model_validate(job({**changes, "training.adapter": adapter}))
    found = list(check_adapter(parsed, folder, config))
    assert [".".join(map(str, each.path)) for each in found] == ([where] if where else [])
    assert all(said in each.message for each in found)


def test_nothing_is_wrong_with_none(tmp_path: Path) -> None:
    assert not list(check_adapter(RLJob.model_validate(job(FOLDER)), tmp_path, {}))


@pytest.mark.parametrize(
    ("changes", "adapter", "said"),
    [
        # 64 features, all layers: queries have 128 outputs, keys and values 64, the feed-forward 192.
        ({}, {"rank": 64}, None),
        (
            {},
            {"rank": 65},
            "is 65, above what any of the layers can use: the change of a layer has no higher rank than it "
            "has inputs or outputs, whichever are fewer, 64 at most here (model.layers.0.mlp.down_proj: 192 "
            "inputs, 64 outputs). Take 64 or less",
        ),
        ({}, {"rank": 512, "targetModules": ["up_proj"]}, "64 at most here (model.layers.0.mlp.up_proj: 64"),
        (
            NARROW,
            {"rank": 64},
            "is 64, above what k_proj, v_proj can use: the change of a layer has no higher rank than it has "
            "inputs or outputs, whichever are fewer, 32 in model.layers.0.self_attn.k_proj: 64 inputs, 32 "
            "outputs. What is trained beyond that changes nothing there; up to 64 is of use in other layers "
            "(model.layers.0.mlp.down_proj: 192 inputs, 64 outputs). Take 32 or less, or leave k_proj, "
            "v_proj out of targetModules",
        ),
        (NARROW, {"rank": 64, "targetModules": ["q_proj"]}, None),
        (NARROW, {"rank": 32}, None),
        (FOLDER, {"rank": 4}, None),
        (FOLDER, {"rank": 5}, "4 at most here (model.layers.0.mlp.c_fc: 6 inputs, 4 outputs)"),
    ],
)
def test_a_rank_beyond_what_layers_can_use_is_told(
    folder: Path, changes: dict[str, Any], adapter: dict[str, Any], said: str | None
) -> None:
    parsed = RLJob.model_validate(job({**changes, "training.adapter": adapter}))
    found = list(doubtful_rank(parsed, folder))
    assert [".".join(map(str, each.path)) for each in found] == ([RANK] if said else [])
    assert all(str(said) in each.message for each in found)


def test_no_adapter_has_no_rank(tmp_path: Path) -> None:
    assert not list(doubtful_rank(RLJob.model_validate(job()), tmp_path))


@pytest.mark.parametrize(
    ("changes", "trained"),
    [
        ({}, None),
        # Two blocks: inputs and outputs of seven layers, and of one.
        ({"training.adapter": {"rank": 1}}, 2 * (2 * (64 + 128) + 2 * (64 + 64) + 3 * (64 + 192))),
        ({"training.adapter": {"rank": 2, "targetModules": ["down_proj"]}}, 2 * 2 * (192 + 64)),
        ({**EXPERTS, "training.adapter": {"rank": 1}}, 2 * (2 * (64 + 128) + 2 * (64 + 64))),
        ({**FOLDER, "training.adapter": {"rank": 3}}, 3 * (4 + 6)),
    ],
)
def test_numbers_that_are_trained(folder: Path, changes: dict[str, Any], trained: int | None) -> None:
    assert model_size(RLJob.model_validate(job(changes)), folder, 1000) == ModelSize(1000, trained)


@pytest.mark.parametrize(
    ("changes", "kept", "on_device"),
    [
        # 1,000 weights in 4 bytes, and 10 with gradients and two moments.
        ({}, 4_000 + 160, 4_000 + 160),
        ({"training.model.dtype": "bfloat16"}, 2_000 + 160, 2_000 + 160),
        ({"training.algorithm.kl": {}}, 4_000 + 160, 4_000 + 160),
        ({"training.optimizer.stateFormat": "bfloat16"}, 4_000 + 120, 4_000 + 120),
        # Held of all of them 2 bytes, and gradients of 10 in 4.
        (
            {"training.model.dtype": "bfloat16", "training.compute.holdWeights": True},
            2_000 + 160,
            2_000 + 120 + 2_020 + 40,
        ),
    ],
)
def test_a_rank_has_state_of_the_adapter_alone(changes: dict[str, Any], kept: int, on_device: int) -> None:
    parsed = RLJob.model_validate(job({**changes, "training.adapter": {}}))
    found = state_bytes(parsed, ModelSize(1_000, 10))
    assert (found.kept, found.on_device) == (kept, on_device)


def test_a_rank_beyond_use_refuses_nothing(tmp_path: Path) -> None:
    errors, warnings = check_job(RLJob.model_validate(job({"training.adapter": {"rank": 512}})), tmp_path)
    assert not errors and RANK in [".".join(map(str, each.path)) for each in warnings]
