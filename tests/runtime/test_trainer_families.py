"""Architectures: each is scored as transformers scores it, or refused where the manifest is checked."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import moe

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.manifest.attention_limits import ANOTHER_MODEL, SCORED
from rljob_runtime.manifest.model_trial import check_computation
from rljob_runtime.trainer import block_attention
from rljob_runtime.trainer.model import load_policy
from rljob_runtime.trainer.packing import pack
from rljob_runtime.trainer.sampling_distribution import Distribution
from rljob_runtime.trainer.sharding import whole_weights
from rljob_runtime.weights.contents import tensor_shapes
from tests.runtime.test_trainer_model import one_by_one, samples
from tests.support.runtime.families import IMAGES, family_model
from tests.support.runtime.hdp_steps import compute_as_given, without_float32

CPU = torch.device("cpu")
LENGTHS = [(3, 4), (5, 30), (20, 60), (3, 1), (12, 70), (2, 2)]
BOTH = ["full_attention", "sliding_attention"]
SHORT = {"factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10_000.0}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0} | SHORT
YARN = {"rope_type": "yarn"} | SHORT
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}


CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0, "layer_types": BOTH}
"""Low enough that they are felt."""


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
    "a factor by the name of a divisor": Model("hyperclovax", {"logits_scaling": 0.25}),
    "latent attention": Model("deepseek_v3", {"num_key_value_heads": 4}),
    "experts": Model("olmoe"),
    "caps of scores and of logits": Model("gemma2", CAPS),
    "a cap of logits alone": Model("gemma3_text", {"final_logit_softcapping": 5.0}),
    "sinks": Model("gpt_oss", {"layer_types": BOTH}),
    "sinks, and a divisor of logits": Model("granite_swa", {"layer_types": BOTH, "logits_scaling": 4.0}),
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


@pytest.mark.parametrize("name", ["caps of scores and of logits", "sinks"])
def test_gradients_are_those_of_transformers_one_by_one(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, of log-probabilities and entropies, with attention in several blocks."""
    monkeypatch.setattr(block_attention, "_SCORES", 2000)
    # torch's own kernel for groups of experts does not take float64.
    monkeypatch.setattr(moe, "_can_use_grouped_mm", lambda *_: False)
    folder = family_model(tmp_path / "model", EXACT[name].kind, **EXACT[name].fields)
    prompts, responses = samples(LENGTHS)
    policy = load_policy(folder, Distribution(temperature=0.7), torch.float64)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    if plain._can_set_experts_implementation():
        plain.set_experts_implementation("eager")
    for model in (policy.model, plain):
        compute_as_given(model)
    packed = pack(prompts, responses, CPU)
    slopes = torch.randn(2, len(packed.targets), dtype=torch.float64)
    for found in (policy(packed), in_float64(plain, prompts, responses, 0.7)):
        (found[0] @ slopes[0] + found[1] @ slopes[1]).backward()
    expected = dict(plain.named_parameters())
    for each, parameter in policy.model.named_parameters():
        gradient, other = parameter.grad, expected[each].grad
        assert gradient is not None and other is not None, each
        assert (gradient - other).norm() <= 1e-14 * other.norm(), each


def in_float64(model: Any, prompts: Any, responses: Any, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies by Hugging Face's model, one sample after the other."""
    found = []
    for prompt, response in zip(prompts, responses, strict=True):
        tokens = torch.from_numpy(np.concatenate([prompt, response])).long()
        logits = without_float32(model, tokens[None]).logits[0, len(prompt) - 1 : -1]
        each = torch.distributions.Categorical(logits=logits / temperature)
        found.append((each.log_prob(tokens[len(prompt) :]), each.entropy()))
    log_probs, entropies = zip(*found, strict=True)
    return torch.cat(log_probs), torch.cat(entropies)


WINDOW = r"sliding_window 9 in config\.json, which \w+Attention of transformers [\d.]+ does not pass on"
PASSED = r"_softcapping 9\.0 in config\.json, which Qwen3ForCausalLM of transformers [\d.]+ does not apply"
NO_CAP = r"attn_logit_softcapping 0\.0 in config\.json"
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
    "a cap of scores that attention does not have": (Model("qwen3", {"attn_logit_softcapping": 9.0}), PASSED),
    "a cap of logits that they do not have": (Model("qwen3", {"final_logit_softcapping": 9.0}), PASSED),
    "a cap of nothing": (Model("gemma2", {"attn_logit_softcapping": 0.0}), NO_CAP),
    "logits without a sign": (Model("cohere", {"logit_scale": 0.0}), "a factor of logits in config"),
    "logits divided by nothing": (Model("granite", {"logits_scaling": 0.0}), "a factor of logits in config"),
    "logits times nothing": (Model("hyperclovax", {"logits_scaling": 0.0}), "a factor of logits in config"),
    "heads of two sizes": (Model("gemma4_text", {"layer_types": BOTH[::-1]}), "heads of attention that"),
    "key heads that it does not have": (Model("deepseek_v3"), "num_key_value_heads .* that of its layers, 4"),
    "key heads that it does not have, before a router that looks at numbers": (
        Model("longcat_flash", {"num_layers": 2}), "num_key_value_heads .* that of its layers, 4",
    ),
    "convolutions": (Model("lfm2", {"layer_types": ["conv", "full_attention"]}), "layers of type conv"),
}  # fmt: skip


CURES = {
    WINDOW: f"write null there where no sample is longer, else {ANOTHER_MODEL}",
    "num_key_value_heads .* that of its layers, 4": "write 4 there",
    PASSED: "write null there if its weights were trained without it",
    NO_CAP: "write a number above 0 there, or null for no cap",
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


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "siglip"])
def test_what_is_no_causal_language_model_is_refused(tmp_path: Path, kind: str) -> None:
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    words = rf"a model with model_type {kind} in config\.json, of which transformers [\d.]+ has no causal"
    told = f"{words} language model, is not supported by the trainer: {ANOTHER_MODEL}$"
    with pytest.raises(UnsupportedModel, match=told):
        check_computation(tmp_path, 100)


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
