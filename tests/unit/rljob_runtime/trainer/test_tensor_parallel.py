"""What becomes of a model's parameters in a tensor group; that what is trained is right is tested with ranks
(tests/runtime/test_trainer_tensor.py)."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.trainer.compilation import Compilations
from rljob_runtime.trainer.tensor_experts import own_numbers
from rljob_runtime.trainer.tensor_parallel import on_meta, split
from rljob_runtime.trainer.tensor_parameters import local, whole_on_each
from rljob_runtime.trainer.tensor_sums import reached
from tests.support.runtime.families import IMAGES

SMALL: dict[str, Any] = {
    "vocab_size": 24, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
}  # fmt: skip


def model_of(family: str = "qwen3", tied: bool = True, **changes: Any) -> Any:
    shape = changes if "text_config" in changes else SMALL | {"tie_word_embeddings": tied} | changes
    config = AutoConfig.for_model(family, **shape)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def test_a_model_is_split_as_its_plan_says(mesh: DeviceMesh) -> None:
    model = model_of()
    on_meta(model)
    split(model, mesh)
    found = {name: (each.placements, tuple(each.to_local().shape)) for name, each in model.named_parameters()}
    first = {name.removeprefix("model.layers.0."): each for name, each in found.items() if ".0." in name}
    whole = (Replicate(),)
    assert first == {
        "self_attn.q_proj.weight": ((Shard(0),), (8, 16)),
        "self_attn.k_proj.weight": ((Shard(0),), (4, 16)),
        "self_attn.v_proj.weight": ((Shard(0),), (4, 16)),
        "self_attn.o_proj.weight": ((Shard(1),), (16, 8)),
        "self_attn.q_norm.weight": (whole, (4,)),
        "self_attn.k_norm.weight": (whole, (4,)),
        "mlp.gate_proj.weight": ((Shard(0),), (6, 16)),
        "mlp.up_proj.weight": ((Shard(0),), (6, 16)),
        "mlp.down_proj.weight": ((Shard(1),), (16, 6)),
        "input_layernorm.weight": (whole, (16,)),
        "post_attention_layernorm.weight": (whole, (16,)),
    }
    assert found["model.embed_tokens.weight"] == ((Shard(0),), (12, 16))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_biases_are_split_with_their_columns(mesh: DeviceMesh) -> None:
    model = model_of("qwen2", tied=False)
    split(model, mesh)
    attention = model.model.layers[1].self_attn
    assert attention.q_proj.bias.placements == (Shard(0),)
    assert tuple(attention.k_proj.bias.to_local().shape) == (4,)
    assert model.lm_head.weight.placements == (Shard(0),)
    assert model.lm_head.weight is not model.model.embed_tokens.weight


@pytest.mark.parametrize("tied", [True, False])
def test_a_vocabulary_that_cannot_be_divided_stays_whole(mesh: DeviceMesh, tied: bool) -> None:
    model = model_of(tied=tied, vocab_size=25)
    split(model, mesh)
    for weight in (model.lm_head.weight, model.model.embed_tokens.weight):
        assert weight.placements == (Replicate(),)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


WHOLE = (Replicate(),)
MIXTURE: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "mlp_only_layers": [0],
    "shared_expert_intermediate_size": 6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("width", "gate", "down"),
    [(6, ((Shard(0),), (3, 16)), ((Shard(1),), (16, 3))), (5, (WHOLE, (5, 16)), (WHOLE, (16, 5)))],
)
def test_experts_are_split_by_number(mesh: DeviceMesh, width: int, gate: Any, down: Any) -> None:
    """Beside a router, a dense layer, and a shared expert that its plan does not name: it is split as the
    dense layer is, where it can be."""
    model = model_of("qwen2_moe", tied=False, **MIXTURE | {"shared_expert_intermediate_size": width})
    split(model, mesh)
    found = {name: (each.placements, tuple(each.to_local().shape)) for name, each in model.named_parameters()}
    parts = {name.removeprefix("model.layers."): each for name, each in found.items() if ".mlp." in name}
    assert parts == {
        "0.mlp.gate_proj.weight": ((Shard(0),), (6, 16)),
        "0.mlp.up_proj.weight": ((Shard(0),), (6, 16)),
        "0.mlp.down_proj.weight": ((Shard(1),), (16, 6)),
        "1.mlp.experts.gate_up_proj": ((Shard(0),), (2, 12, 16)),
        "1.mlp.experts.down_proj": ((Shard(0),), (2, 16, 6)),
        "1.mlp.gate.weight": (WHOLE, (4, 16)),
        "1.mlp.shared_expert.gate_proj.weight": gate,
        "1.mlp.shared_expert.up_proj.weight": gate,
        "1.mlp.shared_expert.down_proj.weight": down,
        "1.mlp.shared_expert_gate.weight": (WHOLE, (1, 16)),
    }
    layer = model.model.layers[1].mlp
    assert (layer.experts.num_experts, layer.gate.num_experts) == (2, 4)


def test_numbers_of_others_experts() -> None:
    """Are one above the rank's own, which transformers leaves out."""
    chosen = torch.tensor([[0, 2], [3, 5], [4, 1]])
    assert own_numbers(chosen, 2, 2).tolist() == [[2, 0], [1, 2], [2, 2]]
    assert own_numbers(chosen, 0, 2).tolist() == [[0, 2], [2, 2], [2, 1]]


def test_what_a_rank_did_not_use_has_gradients_of_zero() -> None:
    used, unused = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    found = reached(2 * used.detach(), (used, unused))
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert found.tolist() == [2.0, 2.0]
    for each in (used, unused):
        assert each.grad is not None
        assert not each.grad.any()


def not_stacked(model: Any) -> None:
    del model.model.layers[1].mlp.experts.has_gate


def other_tensors(model: Any) -> None:
    model.model.layers[1].mlp.experts.bias = nn.Parameter(torch.zeros(4, 6))


def in_a_split_layer(model: Any) -> None:
    plan = model.config.base_model_tp_plan
    model.config.base_model_tp_plan = plan | {"layers.*.mlp.shared_expert_gate": "colwise"}


def whole_attention(model: Any) -> None:
    plan = model.config.base_model_tp_plan
    model.config.base_model_tp_plan = {name: kind for name, kind in plan.items() if "self_attn" not in name}


def uneven(model: Any) -> None:
    model.model.layers[1].mlp.experts.num_experts = 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (not_stacked, "has experts that transformers does not stack as it does for most models: set 1"),
        (other_tensors, "has experts that transformers does not stack as it does for most models: set 1"),
        (in_a_split_layer, "has layers.1.mlp.experts in a layer that its plan splits: set 1"),
        (whole_attention, "has experts, and a plan that leaves layers.0.self_attn whole: set 1"),
        (uneven, "has 3 experts in layers.1.mlp.experts, which 2 does not divide: set 1"),
    ],
)
def test_experts_that_cannot_be_split(mesh: DeviceMesh, change: Callable[[Any], None], words: str) -> None:
    model = model_of("qwen2_moe", **MIXTURE)
    change(model)
    with pytest.raises(UnsupportedModel, match=f"parallel.tensorParallel: Qwen2MoeForCausalLM {words}"):
        split(model, mesh)


def unknown_parameters(model: Any) -> None:
    model.model.layers[1].self_attn.gate = nn.Linear(16, 4)


def no_plan(model: Any) -> None:
    model.config.base_model_tp_plan = None


def unknown_kind(model: Any) -> None:
    plan = model.config.base_model_tp_plan
    model.config.base_model_tp_plan = plan | {"layers.*.mlp.down_proj": "rowwise_split_input"}


def no_linear_layer(model: Any) -> None:
    model.model.layers[0].mlp.down_proj = nn.Bilinear(4, 4, 16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            unknown_parameters,
            "has parameters in layers.1.self_attn.gate, of which its plan for splitting says",
        ),
        (no_plan, "has no plan for splitting its layers"),
        (unknown_kind, "has rowwise_split_input in its plan"),
        (
            no_linear_layer,
            "has layers.0.mlp.down_proj, which is no linear layer, among those to split: set 1",
        ),
    ],
)
def test_models_whose_parts_are_not_known(
    mesh: DeviceMesh, change: Callable[[Any], None], words: str
) -> None:
    model = model_of()
    change(model)
    with pytest.raises(UnsupportedModel) as caught:
        split(model, mesh)
    assert "parallel.tensorParallel: Qwen3ForCausalLM" in str(caught.value)
    assert words in str(caught.value)


def test_activations_that_are_left_out_by_those_of_other_ranks(mesh: DeviceMesh) -> None:
    sparse = {"activation_sparsity_pattern": [0.5, 0.0], "num_kv_shared_layers": 0}
    words = "Gemma3nForCausalLM has activation_sparsity_pattern in config.json, for which a rank needs"
    with pytest.raises(UnsupportedModel, match=f"parallel.tensorParallel: {words} .*: set 1"):
        split(model_of("gemma3n_text", **sparse), mesh)
    split(model_of("gemma3n_text", **sparse | {"activation_sparsity_pattern": [0.0, 0.0]}), mesh)


@pytest.mark.parametrize("images", [False, True])
def test_heads_that_leave_some_over(mesh: DeviceMesh, images: bool) -> None:
    heads = {"num_key_value_heads": 1}
    model = model_of("gemma3", text_config=SMALL | heads, **IMAGES) if images else model_of(**heads)
    with pytest.raises(UnsupportedModel, match=r"num_key_value_heads 1 \(config.json\): set one of 1"):
        split(model, mesh)


def test_on_the_meta_device_ties_and_buffers_stay() -> None:
    model = model_of()
    model.lm_head.weight.requires_grad_(False)
    on_meta(model)
    assert {each.device.type for each in model.parameters()} == {"meta"}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not model.lm_head.weight.requires_grad
    assert {each.device.type for each in model.buffers()} == {"cpu"}


def test_numbers_of_a_rank(mesh: DeviceMesh) -> None:
    plain = torch.arange(8.0).reshape(4, 2)
    assert whole_on_each(plain)
    assert local(plain) is plain
    parts = distribute_tensor(plain, mesh, [Shard(0)], src_data_rank=None)
    assert not whole_on_each(parts)
    assert torch.equal(local(parts), plain[2:])
    copies = nn.Parameter(distribute_tensor(plain, mesh, [Replicate()], src_data_rank=None))
    assert whole_on_each(copies)
    local(copies).sum().backward()  # type: ignore[no-untyped-call]
    assert isinstance(copies.grad, DTensor)
    assert copies.grad.placements == (Replicate(),)


def test_layers_that_are_split_can_be_compiled(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sizes that stay open, and once for all layers; without a compiler of machine code, which takes
    long. The other rank does not exist, so that sums are those of one."""
    plain = model_of(tied=False, attn_implementation="eager")
    compiled = copy.deepcopy(plain)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", options=None))
    for layer in compiled.model.layers:
        layer.forward = torch.compile(layer.forward, dynamic=True)
    compiling = Compilations()
    for model in (plain, compiled):
        split(model, mesh)
    for tokens in (20, 7):
        found = []
        for model in (plain, compiled):
            hidden = model.model(torch.arange(tokens)[None], use_cache=False).last_hidden_state
            hidden.square().sum().backward()
            found.append([hidden, *(local(each.grad) for each in model.model.parameters())])
            model.zero_grad()
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)
    assert compiling() > 0
    assert compiling.why() == []
    compiling.close()
