"""What becomes of an adapter in a tensor group, and what its ranks exchange; that what is trained is right is
tested with ranks (tests/runtime/test_trainer_tensor_adapter.py)."""

from collections import Counter
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.trainer.tensor_parallel import split
from tests.unit.rljob_runtime.trainer.test_tensor_parallel import model_of

COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")
TOKENS = torch.arange(20)[None]


def adapted(*layers: str) -> Any:
    """A model with an adapter of rank 2 at these layers, which alone is trained."""
    model = model_of(tied=False, attn_implementation="eager")
    config = LoraConfig(r=2, lora_alpha=4, target_modules=list(layers))
    return inject_adapter_in_model(config, model, "default")


def test_each_matrix_is_split_on_the_side_of_its_layer(mesh: DeviceMesh) -> None:
    model = adapted("q_proj", "down_proj")
    split(model, mesh)
    names = ("self_attn.q_proj", "mlp.down_proj")
    found = {
        name.removeprefix("model.layers.1."): (each.placements, tuple(each.to_local().shape))
        for name, each in model.named_parameters()
        if "layers.1." in name and any(layer in name for layer in names)
    }
    whole = (Replicate(),)
    assert found == {
        "self_attn.q_proj.base_layer.weight": ((Shard(0),), (8, 16)),
        "self_attn.q_proj.lora_A.default.weight": (whole, (2, 16)),
        "self_attn.q_proj.lora_B.default.weight": ((Shard(0),), (8, 2)),
        "mlp.down_proj.base_layer.weight": ((Shard(1),), (16, 6)),
        "mlp.down_proj.lora_A.default.weight": ((Shard(1),), (2, 6)),
        "mlp.down_proj.lora_B.default.weight": (whole, (16, 2)),
    }
    for name, each in model.named_parameters():
        assert each.requires_grad == ("lora_" in name), name


def test_layers_that_stay_whole_have_a_whole_adapter(mesh: DeviceMesh) -> None:
    model = model_of(tied=False)
    model.model.layers[0].beside = nn.Linear(16, 16)
    config = LoraConfig(r=2, lora_alpha=4, target_modules=["beside"])
    split(inject_adapter_in_model(config, model, "default"), mesh)
    for each in model.model.layers[0].beside.parameters():
        assert each.placements == (Replicate(),)


class Sums(TorchDispatchMode):
    """Counts sums over the group, by the shape of what is added."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, called: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if "reduce" in called.name():
            values = given[0][0] if isinstance(given[0], list) else given[0]
            self.found[tuple(values.shape)] += 1
        return called(*given, **(named or {}))


@pytest.mark.parametrize("layers", [COLUMNS + ROWS, COLUMNS, ROWS])
def test_a_pass_has_no_sums_but_those_of_its_layers(mesh: DeviceMesh, layers: tuple[str, ...]) -> None:
    """Of hidden states: two for each of two layers forward, and one of embeddings; backward none for the
    first layer's inputs, as embeddings are not trained."""
    model = adapted(*layers)
    split(model, mesh)
    with Sums() as forward:
        found = model.model(input_ids=TOKENS).last_hidden_state
    with Sums() as backward:
        found.square().sum().backward()
    hidden = (1, 20, 16)
    assert forward.found == {hidden: 5}
    assert backward.found == {hidden: 3}
    for name, each in model.named_parameters():
        if not each.requires_grad:
            assert each.grad is None, name
            continue
        # Of a whole matrix a rank has a part of the gradient, which is added with those of other samples.
        assert isinstance(each.grad, DTensor)
        parts = (Partial(),) if each.placements == (Replicate(),) else each.placements
        assert each.grad.placements == parts, name


def test_a_model_whose_layers_are_not_known_is_refused_with_an_adapter_too(mesh: DeviceMesh) -> None:
    model = adapted("q_proj")
    model.model.layers[1].self_attn.gate = nn.Linear(16, 4)
    with pytest.raises(UnsupportedModel, match=r"has parameters in layers\.1\.self_attn\.gate, of which"):
        split(model, mesh)
