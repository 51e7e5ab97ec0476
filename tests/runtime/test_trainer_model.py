"""The packed forward pass against Hugging Face's own, one sample at a time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.trainer.attention import ATTENTION, register_attention
from rljob_runtime.trainer.compilation import Compilations
from rljob_runtime.trainer.model import load_policy, save_initial_model
from rljob_runtime.trainer.packing import pack
from rljob_runtime.trainer.policy import Policy
from rljob_runtime.trainer.sampling_distribution import Distribution, restrict
from rljob_runtime.trainer.sharding import whole_weights
from rljob_runtime.trainer.varlen import AscendVarlen, Varlen
from rljob_runtime.weights.contents import tensor_shapes
from tests.support.runtime import varlen_on_cpu
from tests.support.runtime.tiny_models import VOCABULARY, Family, tiny_model
from tests.support.runtime.trainer_ranks import trainer_job

CPU = torch.device("cpu")
PLAIN = Distribution()


def samples(
    lengths: list[tuple[int, int]], seed: int = 0
) -> tuple[list[NDArray[np.int32]], list[NDArray[np.int32]]]:
    """Random prompts and responses of these lengths."""
    rng = np.random.default_rng(seed)
    drawn = [[rng.integers(0, VOCABULARY, n).astype(np.int32) for n in pair] for pair in lengths]
    return [pair[0] for pair in drawn], [pair[1] for pair in drawn]


def one_by_one(
    folder: Path,
    prompts: list[NDArray[np.int32]],
    responses: list[NDArray[np.int32]],
    temperature: float = 1.0,
) -> tuple[list[float], list[float]]:
    """Log-probabilities and entropies by Hugging Face's model with its eager attention."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    log_probs, entropies = [], []
    for prompt, response in zip(prompts, responses, strict=True):
        tokens = torch.from_numpy(np.concatenate([prompt, response])).long()
        with torch.no_grad():
            logits = model(tokens[None]).logits[0, len(prompt) - 1 : -1].double() / temperature
        distribution = torch.distributions.Categorical(logits=logits)
        log_probs += distribution.log_prob(tokens[len(prompt) :]).tolist()
        entropies += distribution.entropy().tolist()
    return log_probs, entropies


MIXED = [(1, 1), (5, 30), (100, 150), (3, 1), (12, 70), (2, 2), (60, 5), (100, 151)]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama", "qwen3_moe", "mixtral"])
def test_packed_is_alone(tmp_path: Path, family: Family, tied: bool) -> None:
    folder = tiny_model(tmp_path / "model", family, tied)
    prompts, responses = samples(MIXED)
    policy = load_policy(folder, Distribution(temperature=0.7), torch.float32)
    log_probs, entropies = policy(pack(prompts, responses, CPU))
    expected = one_by_one(folder, prompts, responses, temperature=0.7)
    np.testing.assert_allclose(log_probs.detach().numpy(), expected[0], atol=2e-5)
    np.testing.assert_allclose(entropies.detach().numpy(), expected[1], atol=2e-5)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_grouped_experts_are_those_one_after_the_other(tmp_path: Path, family: Family) -> None:
    """So few tokens that some experts get none: their gradient is zero, and nothing that memory held."""
    folder = tiny_model(tmp_path / "model", family)
    packed = pack(*samples([(2, 1), (1, 1)]), CPU)
    gradients = {}
    for experts in ("grouped", "eager"):
        model = load_policy(folder, PLAIN, torch.float32, experts=experts).model
        Policy(model, PLAIN)(packed)[0].sum().backward()
        gradients[experts] = {name: each.grad for name, each in model.named_parameters()}
    stacked = [name for name in gradients["eager"] if name.endswith("experts.gate_up_proj")]
    assert len(stacked) == 2
    for name, gradient in gradients["eager"].items():
        torch.testing.assert_close(gradients["grouped"][name], gradient, rtol=1e-5, atol=1e-6)
    for name in stacked:
        idle = gradients["eager"][name].abs().amax(dim=(1, 2)) == 0
        assert idle.any() and not idle.all()


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "mixtral"])
def test_what_is_published_is_the_folder_tensor_by_tensor(tmp_path: Path, family: Family) -> None:
    """In the order of the folder's names, which engines expect."""
    folder = tiny_model(tmp_path / "model", family)
    policy = load_policy(folder, PLAIN, torch.float32)
    found = list(whole_weights(policy, tensor_shapes(folder), torch.float32))
    expected = load_file(folder / "model.safetensors")
    assert [name for name, _ in found] == sorted(expected)
    for name, tensor in found:
        assert torch.equal(tensor, expected[name]) and tensor.is_contiguous(), name


@pytest.mark.parametrize(("family", "tied"), [("qwen3", True), ("qwen3_moe", False)])
def test_a_model_without_weights_takes_no_memory(tmp_path: Path, family: Family, tied: bool) -> None:
    """Of the same tensors as the one with weights, those tied that are tied there; buffers are the same."""
    folder = tiny_model(tmp_path / "model", family, tied)
    empty = load_policy(folder, PLAIN, torch.float32, weights=False)
    whole = load_policy(folder, PLAIN, torch.float32)
    assert all(parameter.is_meta for parameter in empty.parameters())
    shapes = [
        {name: (each.shape, each.dtype) for name, each in policy.named_parameters()}
        for policy in (empty, whole)
    ]
    assert shapes[0] == shapes[1]
    buffers = dict(whole.named_buffers())
    for name, buffer in empty.named_buffers():
        assert torch.equal(buffer, buffers.pop(name))
    assert not buffers


def test_noise_of_the_router_is_off(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model", "mixtral")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"router_jitter_noise": 0.5}))
    packed = pack(*samples([(3, 20)]), CPU)
    policy = load_policy(folder, PLAIN, torch.float32, "full")
    assert torch.equal(policy(packed)[0], policy(packed)[0])


def test_sliding_window(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    config["layer_types"] = ["full_attention", "sliding_attention"]
    (folder / "config.json").write_text(json.dumps(config))
    prompts, responses = samples([(5, 30), (2, 3), (20, 40)])
    log_probs, _ = load_policy(folder, PLAIN, torch.float32)(pack(prompts, responses, CPU))
    np.testing.assert_allclose(
        log_probs.detach().numpy(), one_by_one(folder, prompts, responses)[0], atol=2e-5
    )


def test_gradients_are_the_same_in_chunks_with_recomputation_and_at_once(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    packed = pack(*samples([(3, 20), (5, 31)]), CPU)

    def gradients(logits: int, recompute: bool) -> dict[str, torch.Tensor]:
        model = load_policy(folder, PLAIN, torch.float32, "full" if recompute else "none").model
        policy = Policy(model, PLAIN, logits)
        log_probs, entropy = policy(packed)
        (log_probs.square().sum() + 0.3 * entropy.sum()).backward()
        return {
            name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
        }

    whole = gradients(10**9, False)
    for other in (gradients(7 * VOCABULARY, False), gradients(10**9, True)):
        assert other.keys() == whole.keys()
        for name, gradient in whole.items():
            torch.testing.assert_close(other[name], gradient, rtol=1e-4, atol=1e-5)


RESTRICTED = [
    # top-k, top-p, drawn token, tokens that stay; probabilities 0.4, 0.3, 0.2, 0.1
    (0, 1.0, 3, {0, 1, 2, 3}),
    (2, 1.0, 0, {0, 1}),
    (2, 1.0, 3, {0, 1, 3}),
    (0, 0.4, 0, {0}),
    (0, 0.41, 0, {0, 1}),
    (0, 0.65, 3, {0, 1, 3}),
    (0, 0.71, 1, {0, 1, 2}),
    (3, 0.75, 0, {0, 1}),  # 0.4 and 0.3 are 7/9 of the three highest
    (4, 1.0, 0, {0, 1, 2, 3}),
]


@pytest.mark.parametrize(("top_k", "top_p", "drawn", "stay"), RESTRICTED)
def test_restrict(top_k: int, top_p: float, drawn: int, stay: set[int]) -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    found = restrict(logits, Distribution(1.0, top_k, top_p), torch.tensor([drawn]))
    probabilities = found.softmax(-1)[0]
    assert set(probabilities.nonzero()[:, 0].tolist()) == stay
    kept = torch.tensor([0.4, 0.3, 0.2, 0.1])[sorted(stay)]
    torch.testing.assert_close(probabilities[sorted(stay)], kept / kept.sum())


def test_restricted_policy_is_finite_and_has_a_gradient(tmp_path: Path) -> None:
    policy = load_policy(tiny_model(tmp_path / "model"), Distribution(0.8, 5, 0.9), torch.float32)
    log_probs, entropy = policy(pack(*samples([(3, 40), (4, 20)]), CPU))
    (log_probs.sum() + entropy.sum()).backward()
    assert log_probs.isfinite().all()
    assert (entropy <= np.log(6) + 1e-5).all()
    gradients = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_random_model_depends_on_the_seed_alone(tmp_path: Path) -> None:
    def weights(name: str, seed: int) -> dict[str, torch.Tensor]:
        save_initial_model(trainer_job(seed=seed), 40, 0, 1, 2, tmp_path / name)
        return load_file(tmp_path / name / "model.safetensors")

    first, torch_draw = weights("a", 7), torch.rand(3)
    again, other = weights("b", 7), weights("c", 8)
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    assert not torch.equal(torch_draw, torch.rand(3))
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["vocab_size"], config["pad_token_id"], config["eos_token_id"]) == (64, 0, 2)


def test_models_that_cannot_be_trained_are_refused(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")

    (folder / "config.json").write_text(json.dumps(config | {"final_logit_softcapping": 30.0}))
    with pytest.raises(UnsupportedModel, match=r"final_logit_softcapping 30\.0 in config\.json, "):
        load_policy(folder, PLAIN, torch.float32)
    (folder / "config.json").write_text(json.dumps(config))

    save_file(weights | {"model.extra.weight": torch.ones(3)}, folder / "model.safetensors", {"format": "pt"})
    told = (
        r"extra\.weight is of shape \[3\] in the \*\.safetensors, and missing in .* trained: load the model"
    )
    with pytest.raises(UnsupportedModel, match=told):
        load_policy(folder, PLAIN, torch.float32)

    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    told = (
        r"norm\.weight is missing in the \*\.safetensors, and of shape .* trained: copy the whole model there"
    )
    with pytest.raises(UnsupportedModel, match=told):
        load_policy(folder, PLAIN, torch.float32)


def test_an_attention_call_that_nothing_knows_of_before_says_what_it_is() -> None:
    register_attention()
    call = transformers.AttentionInterface()[ATTENTION]
    tensors = [torch.zeros(1, 2, 3, 4)] * 3
    told = (
        "Linear: attention with position_bias is not supported by the trainer: give the folder of a model of"
    )
    with pytest.raises(UnsupportedModel, match=told):
        call(torch.nn.Linear(1, 1), *tensors, None, packing=Varlen.of([3], CPU), position_bias=tensors[0])
    with pytest.raises(UnsupportedModel, match="Linear: an attention call of its own kind is not supported"):
        call(torch.nn.Linear(1, 1), *tensors, None)
    # Of a model whose configuration and weights do not tell of it, so that no kernel was tried with it.
    for layout, asked, what in (
        (Varlen.of([3], CPU), {"softcap": 9.0}, "a cap of scores"),
        (Varlen.of([3], CPU), {"s_aux": torch.zeros(2)}, "sinks"),
        (AscendVarlen.of([3], CPU), {"softcap": 9.0}, "a cap of scores"),
        (AscendVarlen.of([3], CPU), {"s_aux": torch.zeros(2)}, "sinks"),
    ):
        told = f"with {what}, in a kernel that does not know it: set training.compute.attention: rectangles"
        with pytest.raises(UnsupportedModel, match=told):
            call(torch.nn.Linear(1, 1), *tensors, None, packing=layout, **asked)


@pytest.mark.timeout(400)  # compiling takes half a minute on idle cores
# A vLLM engine of this process may have turned it off.
@torch._dynamo.config.patch(disable=False)
def test_a_kernel_for_any_lengths_and_layers_that_are_compiled(tmp_path: Path) -> None:
    """With torch's kernel replaced by one for CPUs: what is handed to it, and what is compiled around it."""
    compilations = Compilations()
    folder = tiny_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    config["layer_types"] = ["full_attention", "sliding_attention"]
    (folder / "config.json").write_text(json.dumps(config))
    plain, compiled = (load_policy(folder, PLAIN, torch.float32) for _ in range(2))
    compiled.tune(10**9, compiled=True)
    with varlen_on_cpu.installed():
        for seed, lengths in enumerate([MIXED, [(5, 30), (2, 3), (20, 40)], [(1, 1), (7, 11)]]):
            prompts, responses = samples(lengths, seed)
            expected = one_by_one(folder, prompts, responses)
            for policy in (plain, compiled):
                found = policy(pack(prompts, responses, CPU, Varlen.of))
                np.testing.assert_allclose(found.log_probs.detach().numpy(), expected[0], atol=2e-5)
                np.testing.assert_allclose(found.entropies.detach().numpy(), expected[1], atol=2e-5)
                (found.log_probs.square().sum() + 0.3 * found.entropies.sum()).backward()
    assert compilations() > 0
    compilations.close()
    of_plain = dict(plain.named_parameters())
    assert of_plain.keys() == dict(compiled.named_parameters()).keys(), "weights keep their names"
    for name, parameter in compiled.named_parameters():
        torch.testing.assert_close(parameter.grad, of_plain[name].grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("entropy", ["none", "value", "gradient"])
def test_a_head_that_has_to_be_called_gives_the_same(tmp_path: Path, entropy: Any) -> None:
    """As one that is sharded by itself, whose weights are gathered by a hook."""
    folder = tiny_model(tmp_path / "model", tied=True)
    packed = pack(*samples(MIXED), CPU)
    results = []
    for called in (False, True):
        policy = load_policy(folder, Distribution(0.8, 9), torch.float32)
        policy.tune(7 * VOCABULARY, compiled=False)
        calls: list[int] = []
        if called:
            head = policy.model.get_output_embeddings()
            head.register_forward_pre_hook(lambda module, given, calls=calls: calls.append(len(given[0])))
        found = policy(packed, entropy)
        total = found.log_probs.square().sum()
        assert (found.entropies is None) == (entropy == "none")
        if entropy == "gradient":
            total = total + 0.3 * found.entropies.sum()
        total.backward()
        assert bool(calls) == called and max(calls, default=0) <= 7
        gradients = {name: each.grad for name, each in policy.named_parameters() if each.grad is not None}
        results.append((found.log_probs.detach(), found.entropies, gradients))
    (one, one_entropy, expected), (other, other_entropy, gradients) = results
    torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)
    if entropy != "none":
        torch.testing.assert_close(other_entropy, one_entropy, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(gradients[name], value, rtol=1e-4, atol=1e-5)
