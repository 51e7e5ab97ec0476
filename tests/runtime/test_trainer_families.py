"""Architectures: each is scored as transformers scores it, or refused where the manifest is checked."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.manifest.attention_limits import ANOTHER_MODEL, SCORED
from rljob_runtime.manifest.model_trial import check_computation
from rljob_runtime.trainer.model import load_policy
from rljob_runtime.trainer.packing import pack
from rljob_runtime.trainer.sampling_distribution import Distribution
from rljob_runtime.trainer.sharding import whole_weights
from rljob_runtime.weights.contents import tensor_shapes
from tests.runtime.test_trainer_model import one_by_one, samples
from tests.support.runtime.families import IMAGES, family_model

CPU = torch.device("cpu")
LENGTHS = [(3, 4), (5, 30), (20, 60), (3, 1), (12, 70), (2, 2)]
BOTH = ["full_attention", "sliding_attention"]
SHORT = {"factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10_000.0}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0} | SHORT
YARN = {"rope_type": "yarn"} | SHORT
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}


class Model(NamedTuple):
    kind: str
    """transformers' model_type."""
    fields: dict[str, Any] = {}
    """Of its configuration, beside sizes."""


EXACT = {
    "rotations of llama 3": Model("llama", {"rope_parameters": LLAMA3}),
    "rotations by yarn": Model("llama", {"rope_parameters": YARN}),
    "rotations that would grow": Model("llama", {"rope_parameters": DYNAMIC}),
    "a window in every second layer": Model("qwen2", {"use_sliding_window": True, "layer_types": BOTH}),
    "windows and other rotations in them": Model("gemma3_text", {"layer_types": BOTH}),
    "images too": Model("gemma3", IMAGES | {"text_config": {"layer_types": BOTH}}),
    "a window that no layer has": Model("qwen2_moe", {"use_sliding_window": False}),
    "no rotation in a layer": Model("smollm3", {"no_rope_layers": [1, 0]}),
    "learned positions": Model("gpt2"),
    "a head of another name": Model("gpt_neox", {"tie_word_embeddings": True}),
    "dropout by a function": Model("opt", {"dropout": 0.5, "activation_dropout": 0.5, "layerdrop": 0.5}),
    "dropout of residuals": Model("seed_oss", {"residual_dropout": 0.5}),
    "a router that draws in training": Model("phimoe", {"sliding_window": None, "router_jitter_noise": 0.3}),
    "factors before attention": Model("granite", {"embedding_multiplier": 3.0, "attention_multiplier": 0.1}),
    "a factor of logits that is 1": Model("cohere", {"logit_scale": 1.0}),
    "a factor of logits": Model("cohere", {"logit_scale": 0.25}),
    "a divisor of logits": Model("granite", {"logits_scaling": 4.0}),
    "latent attention": Model("deepseek_v3", {"num_key_value_heads": 4}),
    "experts": Model("olmoe"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_scores_are_those_of_transformers_one_by_one(tmp_path: Path, name: str) -> None:
    """And what is published is the folder, tensor by tensor."""
    folder = family_model(tmp_path / "model", EXACT[name].kind, **EXACT[name].fields)
    check_computation(folder, 100)
    prompts, responses = samples(LENGTHS)
    policy = load_policy(folder, Distribution(temperature=0.7), torch.float32, "full")
    log_probs, entropies = policy(pack(prompts, responses, CPU))
    expected = one_by_one(folder, prompts, responses, temperature=0.7)
    np.testing.assert_allclose(log_probs.detach().numpy(), expected[0], atol=1e-4)
    np.testing.assert_allclose(entropies.detach().numpy(), expected[1], atol=1e-4)
    published, stored = (
        dict(whole_weights(policy, tensor_shapes(folder), torch.float32)),
        load_file(folder / "model.safetensors"),
    )
    assert published.keys() == stored.keys()
    assert all(torch.equal(published[each], stored[each]) for each in stored)


WINDOW = r"sliding_window 9 in config\.json, which \w+Attention of transformers [\d.]+ does not pass on"
REFUSED = {
    "a window that is a mask alone": (Model("phimoe"), WINDOW),
    "a window of some layers that is a mask alone": (
        Model("qwen2_moe", {"use_sliding_window": True, "layer_types": BOTH}), WINDOW,
    ),
    "a mask that the model makes": (Model("doge"), "not causal, or has a mask of its own"),
    "later tokens seen": (Model("gemma3_text", {"use_bidirectional_attention": True}), "not causal"),
    "an encoder alone": (Model("bert"), "not causal"),
    "an encoder as a decoder": (Model("roberta", {"is_decoder": True}), "not those of its output head alone"),
    "layers that recur": (Model("recurrent_gemma"), "a convolution over tokens"),
    "attention by another call": (Model("nemotron"), "an attention call of its own kind"),
    "attention of a table of its own": (Model("falcon"), r"its own attention \(model_type falcon\)"),
    "attention in no registry": (Model("stablelm"), r"its own attention \(StableLmForCausalLM\)"),
    "capped attention": (Model("gemma2", {"final_logit_softcapping": None}), "attn_logit_softcapping"),
    "capped logits": (Model("gemma3_text", {"final_logit_softcapping": 30.0}), "final_logit_softcapping"),
    "logits without a sign": (Model("cohere", {"logit_scale": 0.0}), "a factor of logits in config"),
    "logits divided by nothing": (Model("granite", {"logits_scaling": 0.0}), "a factor of logits in config"),
    "heads of two sizes": (Model("gemma4_text", {"layer_types": BOTH[::-1]}), "heads of attention that"),
    "key heads that it does not have": (Model("deepseek_v3"), "num_key_value_heads .* that of its layers, 4"),
    "sinks": (Model("gpt_oss"), r"attention with sinks"),
    "convolutions": (Model("lfm2", {"layer_types": ["conv", "full_attention"]}), "layers of type conv"),
}  # fmt: skip


CURES = {
    WINDOW: f"write null there where no sample is longer, else {ANOTHER_MODEL}",
    "num_key_value_heads .* that of its layers, 4": "write 4 there",
    "a factor of logits in config": "write a number above 0 there, as the config.json has that came with .*",
}
"""What to do, where it is not to take another model."""


def test_the_families_that_a_person_is_told_of_are_scored() -> None:
    assert {each.kind for each in EXACT.values()}.issuperset(SCORED)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_trainer_does_not_compute_is_refused_before_a_job(tmp_path: Path, name: str) -> None:
    """Where the manifest is checked, and by the trainer alike."""
    (kind, fields), words = REFUSED[name]
    folder = family_model(tmp_path / "model", kind, **fields)
    told = f"a model with .*{words}.* is not supported by the trainer: {CURES.get(words, ANOTHER_MODEL)}$"
    with pytest.raises(UnsupportedModel, match=told):
        check_computation(folder, 100)
    with pytest.raises(UnsupportedModel, match=words):
        load_policy(folder, Distribution(), torch.float32)


@pytest.mark.parametrize("kind", ["scaled", "capped", "shifted"])
def test_whatever_is_done_with_logits_is_found(tmp_path: Path, kind: str, monkeypatch: Any) -> None:
    """Also where no field of config.json that is known tells of it."""
    from transformers import LlamaForCausalLM

    change = {
        "scaled": lambda x: 1.01 * x,
        "capped": lambda x: 50 * (x / 50).tanh(),
        "shifted": lambda x: x + 1,
    }
    forward = LlamaForCausalLM.forward

    def changed(self: Any, *arguments: Any, **options: Any) -> Any:
        found = forward(self, *arguments, **options)
        found.logits = change[kind](found.logits)
        return found

    folder = family_model(tmp_path / "model", "llama")
    check_computation(folder, 100)
    monkeypatch.setattr(LlamaForCausalLM, "forward", changed)
    with pytest.raises(UnsupportedModel, match="logits that are not those of its output head alone"):
        check_computation(folder, 100)
