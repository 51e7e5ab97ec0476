"""Which layers an adapter is for, and what its tensors are called."""

import pytest

from rljob_api.adapter import Adapter
from rljob_runtime.weights.adapter import (
    NoSuchLayers,
    adapted_layers,
    adapter_parameters,
    adapter_shapes,
    config,
    file_name,
    has_experts,
    layer_of,
    name_in_file,
    name_in_model,
    target_names,
)
from rljob_runtime.weights.contents import Shapes

MODEL: Shapes = {
    "lm_head.weight": (50, 8),
    "model.embed_tokens.weight": (50, 8),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.mlp.down_proj.weight": (8, 24),
    "model.layers.0.self_attn.q_norm.weight": (4,),
    "model.layers.0.self_attn.q_proj.bias": (16,),
    "model.layers.0.self_attn.q_proj.weight": (16, 8),
    "model.layers.1.mlp.down_proj.weight": (8, 24),
    "model.layers.1.self_attn.q_proj.weight": (16, 8),
    "model.norm.weight": (8,),
}
EXPERTS: Shapes = MODEL | {
    "model.layers.0.mlp.gate.weight": (2, 8),
    "model.layers.0.mlp.experts.0.gate_proj.weight": (24, 8),
    "model.layers.0.mlp.experts.1.gate_proj.weight": (24, 8),
    "model.layers.0.mlp.experts.down_proj": (2, 8, 24),
    "model.layers.0.mlp.shared_expert.c_fc.weight": (24, 8),
    "model.layers.0.mlp.shared_expert.gate_proj.weight": (24, 8),
    "model.layers.0.mlp.shared_expert_gate.weight": (1, 8),
}
DOWN, QUERY = ("mlp.down_proj", (24, 8)), ("self_attn.q_proj", (8, 16))


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (None, (DOWN, QUERY)),
        (["q_proj"], (QUERY,)),
        (["self_attn.q_proj"], (QUERY,)),
        (["down_proj", "q_proj"], (DOWN, QUERY)),
    ],
)
def test_layers_by_target(
    targets: list[str] | None, expected: tuple[tuple[str, tuple[int, int]], ...]
) -> None:
    """Of every block; embeddings, output head and norms are no layers of it."""
    found = adapted_layers(MODEL, Adapter(target_modules=targets))
    assert found == {f"model.layers.{block}.{name}": size for block in (0, 1) for name, size in expected}
    assert list(found) == sorted(found)


def test_one_block_can_be_named() -> None:
    assert list(adapted_layers(MODEL, Adapter(target_modules=["model.layers.1.mlp.down_proj"]))) == [
        "model.layers.1.mlp.down_proj"
    ]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["q_proj", "q_porj"], 'no linear layer "q_porj": did you mean "q_proj"? It has down_proj, q_proj'),
        (
            ["q_porj", "v", "q_proj", "down_porj", "v"],
            'no linear layers "q_porj", "v", "down_porj": did you mean "q_proj" for "q_porj", "down_proj" '
            'for "down_porj"? It has down_proj, q_proj',
        ),
        (["v", "w"], 'no linear layers "v", "w": it has down_proj, q_proj'),
        (["experts"], 'no linear layer "experts": it has down_proj, q_proj'),
        # The end of a name, and not a part of one.
        (["proj"], 'no linear layer "proj"'),
        (["lm_head"], 'no linear layer "lm_head"'),
        (["q_norm"], 'no linear layer "q_norm"'),
    ],
)
def test_a_target_that_names_nothing_is_refused(targets: list[str], message: str) -> None:
    with pytest.raises(NoSuchLayers) as caught:
        adapted_layers(MODEL, Adapter(target_modules=targets))
    assert message in str(caught.value)


def test_experts_get_none() -> None:
    """Nor what chooses among them, nor layers of the same names: of shared experts, or of blocks without
    experts."""
    assert has_experts(EXPERTS) and not has_experts(MODEL)
    assert list(adapted_layers(EXPERTS, Adapter())) == [
        "model.layers.0.mlp.shared_expert.c_fc",
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.self_attn.q_proj",
    ]
    assert target_names(EXPERTS, Adapter()) == ["c_fc", "q_proj"]


@pytest.mark.parametrize(
    "target", ["gate_proj", "down_proj", "experts", "mlp.gate", "experts.1.gate_proj", "shared_expert_gate"]
)
def test_a_target_that_names_experts_is_refused(target: str) -> None:
    with pytest.raises(NoSuchLayers) as caught:
        adapted_layers(EXPERTS, Adapter(target_modules=["q_proj", target]))
    assert str(caught.value).startswith(f'"{target}": experts, what chooses among them, and layers that have')
    assert str(caught.value).endswith(
        "take some of c_fc, q_proj, or leave targetModules out for all of these"
    )


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(NoSuchLayers, match="no linear layers that could get an adapter"):
        adapted_layers({"wte.weight": (8, 8)}, Adapter())


def test_shapes_are_those_of_peft() -> None:
    adapter = Adapter(rank=3, target_modules=["q_proj"])
    shapes = adapter_shapes(MODEL, adapter)
    assert shapes == {
        f"base_model.model.model.layers.{block}.self_attn.q_proj.lora_{matrix}.weight": shape
        for block in (0, 1)
        for matrix, shape in (("A", (3, 8)), ("B", (16, 3)))
    }
    assert adapter_parameters(MODEL, adapter) == 2 * 3 * (8 + 16)


def test_names_go_there_and_back() -> None:
    layer = layer_of("model.layers.0.mlp.down_proj.weight")
    name = file_name(layer, "A")
    there = name_in_model(name, "default")
    assert there == "model.layers.0.mlp.down_proj.lora_A.default.weight"
    assert name_in_file(there, "default") == name


@pytest.mark.parametrize(("targets", "written"), [(None, ["down_proj", "q_proj"]), (["q_proj"], ["q_proj"])])
def test_the_config_says_what_peft_needs(targets: list[str] | None, written: list[str]) -> None:
    found = config(MODEL, Adapter(rank=3, alpha=6, target_modules=targets), "/models/base")
    assert (found["r"], found["lora_alpha"], found["target_modules"]) == (3, 6, written)
    assert (found["peft_type"], found["base_model_name_or_path"]) == ("LORA", "/models/base")
