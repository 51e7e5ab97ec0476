"""What only the loaded model shows of a folder: refused where the manifest is checked."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file, save_file

from rljob_runtime.manifest.checks import check
from rljob_runtime.manifest.load import read
from tests.support.jobs import job
from tests.support.runtime.families import IMAGES, family_model

ADAPTER: dict[str, Any] = {"training.adapter": {}, "training.rollout.engine": {"vllm": {}}}
WIDE = {"head_dim": 32}
"""For vLLM on CPUs."""
WINDOWS = {
    "hidden_size": 128,
    "use_sliding_window": True,
    "layer_types": ["full_attention", "sliding_attention"],
}
TORCH: dict[str, Any] = {"training.rollout.engine": {"torch": {}}}
VLLM: dict[str, Any] = {"training.rollout.engine": {"vllm": {}}}
PAIRS: dict[str, Any] = {"pools.trainer.replicas": 2, "training.parallel.tensorParallel": 2}
SIXES: dict[str, Any] = {"pools.trainer.replicas": 6, "training.parallel.tensorParallel": 6}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str | None, str]] = {
    "layers that cannot be computed again": (
        "ctrl", {"hidden_size": 128}, {"training.model.activationCheckpointing": "full"},
        "model.activationCheckpointing",
        "activationCheckpointing needs layers that can be computed again, which CTRLLMHeadModel of",
    ),
    "the same by the older field": (
        "jetmoe", WIDE, {"training.model.gradientCheckpointing": True},
        "model.gradientCheckpointing",
        "gradientCheckpointing needs layers that can be computed again, which JetMoeForCausalLM of",
    ),
    "the same, and nothing is": ("jetmoe", WIDE, {}, None, ""),
    "tensors that are several in memory": (
        "hrm_text", WIDE, {}, "model.path",
        "H_module.layers.0.attn.gqkv_proj.weight is of shape [512, 64] in the *.safetensors, and of shape",
    ),
    "an adapter for layers of another name": (
        "gemma3", IMAGES | {"text_config": WIDE}, ADAPTER | {"training.adapter.targetModules": ["q_proj"]},
        "adapter",
        "an adapter needs linear layers, and language_model.model.layers.0.self_attn.q_proj of the "
        "*.safetensors has another name in Gemma3ForConditionalGeneration",
    ),
    "heads of a part for text, too narrow for vLLM": (
        "gemma3", IMAGES, {}, "model.path", "its attention heads are 16 wide",
    ),
    "an adapter for experts": (
        "ernie4_5_moe", WIDE, ADAPTER | {"training.adapter.targetModules": ["up_proj"]},
        "adapter.targetModules", '"up_proj": experts, what chooses among them, and layers that have the name',
    ),
    "an adapter beside experts": ("qwen3_moe", WIDE, ADAPTER, None, ""),
    "an adapter for parts of convolutions": (
        "gpt2", {"hidden_size": 128}, ADAPTER, "adapter.targetModules", "the model has no linear layers",
    ),
    "an adapter": ("olmo2", WIDE, ADAPTER, None, ""),
    "a window that responses pass, with the torch engine": (
        "qwen2", WINDOWS, TORCH, "rollout.engine.torch",
        "the torch engine has no sliding-window attention; sequences of up to 9 tokens work, or use the vllm",
    ),
    "the same window with vLLM": ("qwen2", WINDOWS, VLLM, None, ""),
    "a cap of scores with the torch engine": (
        "gemma2", WIDE, TORCH, "rollout.engine.torch",
        "no attention with a cap of its scores (attn_logit_softcapping 50.0 in config.json); use the vllm",
    ),
    "the same cap with vLLM": ("gemma2", WIDE, VLLM, None, ""),
    "sinks with the torch engine": (
        "granite_swa", WIDE, TORCH, "rollout.engine.torch",
        "the torch engine has no attention with sinks (model.layers.0.self_attn.sinks); use the vllm engine",
    ),
    "sinks in tensor groups": (
        "granite_swa", {"hidden_size": 128}, VLLM | PAIRS, "parallel.tensorParallel",
        "GraniteSWAForCausalLM has parameters in layers.0.self_attn, of which its plan for splitting says",
    ),
    "sinks that vLLM does not take anew": (
        "gpt_oss", WIDE, VLLM, "model.path",
        "vLLM does not take new weights of a model of the model_type gpt_oss",
    ),
    "the same sinks beside an adapter": ("gpt_oss", WIDE, ADAPTER, None, ""),
    "experts with the torch engine": (
        "qwen3_moe", WIDE, TORCH, "rollout.engine.torch",
        "the torch engine cannot reload this architecture (model.layers.0.mlp.experts.0.down_proj.weight)",
    ),
    "experts with vLLM": ("qwen3_moe", WIDE, VLLM, None, ""),
    "experts in tensor groups": ("qwen3_moe", WIDE, VLLM | PAIRS, None, ""),
    "experts in larger tensor groups": (
        "mixtral", WIDE, VLLM | SIXES, "parallel.tensorParallel",
        "num_key_value_heads 2 and num_local_experts 4 (config.json): set one of 1, 2",
    ),
    "experts behind attention that stays whole": (
        "deepseek_v3", {"num_key_value_heads": 4, "head_dim": 32}, VLLM | PAIRS, "parallel.tensorParallel",
        "DeepseekV3ForCausalLM has experts, and a plan that leaves layers.0.self_attn whole: set 1",
    ),
    "experts of a kind of their own in tensor groups": (
        "jetmoe", WIDE, PAIRS, "parallel.tensorParallel", "set 1",
    ),
    "a model that does not say what its layers are, compiled": (
        "ctrl", {"hidden_size": 128}, VLLM | {"training.compute.compile": True}, "compute.compile",
        "CTRLLMHeadModel has no layers that can be compiled one by one: set training.compute.compile: false",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_folder_is_taken_or_refused_before_a_job(tmp_path: Path, name: str) -> None:
    kind, fields, changes, place, words = CASES[name]
    family_model(tmp_path / "m", kind, **fields)
    described = job({"training.model": {"path": "m"}, **changes})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(described, sort_keys=False))
    errors, _ = check(read(tmp_path / "job.yaml"))
    told = [str(each.problem).removeprefix("spec.training.") for each in errors]
    assert [each.split(": ")[0] for each in told] == ([] if place is None else [place])
    assert all(words in each for each in told), told


def test_a_configuration_of_another_model_than_the_weights(tmp_path: Path) -> None:
    file = family_model(tmp_path / "m", "llama", **WIDE) / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"intermediate_size": 2 * config["intermediate_size"]}))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job({"training.model": {"path": "m"}})))
    (error,), _ = check(read(tmp_path / "job.yaml"))
    told = str(error.problem)
    assert "mlp.down_proj.weight is of shape [" in told
    assert "as it is trained: copy config.json and *.safetensors of one and the same model there, or" in told


def scaled(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With a scale for each weight that is stored in 8 bits."""
    narrow = {name for name, each in weights.items() if each.element_size() == 1}
    return weights | {f"{name}_scale_inv": torch.ones(1, 1) for name in narrow}


def _stored(weight: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """In this format; without one as bitsandbytes stores 4 bits: two numbers in a byte, one after another."""
    if dtype is not None:
        return weight.to(dtype)
    return torch.zeros(weight.numel() // 2, 1, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("dtype", "with_scales", "refused", "doubted"),
    [
        (torch.float16, False, "", ""),
        (torch.float64, False, "", ""),
        (torch.int8, False, "q_proj.weight is stored as whole numbers (I8), and config.json has no q", ""),
        (torch.uint8, False, "q_proj.weight is stored as whole numbers (U8), and config.json has no q", ""),
        (torch.bool, False, "q_proj.weight is stored as whole numbers (BOOL), and config.json has no", ""),
        (torch.complex64, False, "q_proj.weight is stored as numbers of another kind than weights (C64)", ""),
        (torch.int8, True, "tensors are stored as I8: these are quantized weights, though config.json", ""),
        (torch.float8_e4m3fn, True, "tensors are stored as F8_E4M3: these are quantized weights, though", ""),
        (None, False, "tensors are stored as U8: these are quantized weights, though config.json has", ""),
        (torch.float8_e4m3fn, False, "", "2 of its 21 tensors are stored in 8 bits (F8_E4M3), without scale"),
        (torch.float8_e5m2, False, "", "2 of its 21 tensors are stored in 8 bits (F8_E5M2), without scale"),
    ],
)
def test_numbers_that_are_no_weights(
    tmp_path: Path, dtype: torch.dtype | None, with_scales: bool, refused: str, doubted: str
) -> None:
    """Their configuration says nothing of quantization, which is looked for by itself."""
    file = family_model(tmp_path / "m", "llama", **WIDE) / "model.safetensors"
    whole = load_file(file)
    stored = {name: _stored(each, dtype) if "q_proj" in name else each for name, each in whole.items()}
    save_file(scaled(stored) if with_scales else stored, file, metadata={"format": "pt"})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job({"training.model": {"path": "m"}, **TORCH})))
    errors, doubts = check(read(tmp_path / "job.yaml"))
    assert [refused in str(each.problem) for each in errors] == ([True] if refused else []), errors
    told = [str(each.problem) for each in doubts if "stored" in str(each.problem)]
    assert [doubted in each for each in told] == ([True] if doubted else []), told
    assert all(": weights in bfloat16, float16 or float32 are needed" in each for each in told)


@pytest.mark.parametrize("engine", [TORCH, VLLM])
def test_rotations_of_an_old_folder_are_passed_over(tmp_path: Path, engine: dict[str, Any]) -> None:
    """transformers and vLLM pass over them too."""
    file = family_model(tmp_path / "m", "llama", **WIDE) / "model.safetensors"
    rotations = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(16) for n in range(2)}
    save_file(load_file(file) | rotations, file, metadata={"format": "pt"})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job({"training.model": {"path": "m"}, **engine})))
    assert check(read(tmp_path / "job.yaml"))[0] == []


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("files", ["consolidated", "adapter_model"])
def test_weights_that_are_no_part_of_the_model_are_named(tmp_path: Path, files: str, shards: int) -> None:
    """Mistral's models come with the same weights once more, in a format and under names of their own."""
    folder = family_model(tmp_path / "m", "mistral")
    if shards > 1:
        whole = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        save_torch_state_dict(whole, folder, max_shard_size="60KB")
    save_file({"layers.0.attention.wq.weight": torch.ones(2, 2)}, folder / f"{files}.safetensors")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job({"training.model": {"path": "m"}, **TORCH})))
    [error], _ = check(read(tmp_path / "job.yaml"))
    read_there = "model.safetensors" if shards == 1 else "those that model.safetensors.index.json names"
    assert str(error.problem) == (
        f"spec.training.model.path: {folder}: {files}.safetensors is no part of the model, which is in "
        f"{read_there}: take it out of the folder, for engines read every *.safetensors."
    )


def test_a_model_in_one_file_and_another_in_shards(tmp_path: Path) -> None:
    """vLLM would begin with the other one: its responses to the first batches, and all with an adapter."""
    folder = family_model(tmp_path / "m", "llama", **WIDE)
    whole = load_file(folder / "model.safetensors")
    save_torch_state_dict({name: each + 1 for name, each in whole.items()}, folder, max_shard_size="60KB")
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    for engine, refused in ((VLLM, True), (TORCH, False)):
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job({"training.model": {"path": "m"}, **engine})))
        told = [str(each.problem) for each in check(read(tmp_path / "job.yaml"))[0]]
        assert ["The trainer reads that alone, and vLLM those that" in each for each in told] == [
            True
        ] * refused
