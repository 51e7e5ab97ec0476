"""The ways that the bench of attention's forms compares on any device give the same."""

import pytest
import torch

from rljob_runtime.trainer.attention_call import AttentionCall
from tests.bench import attention_forms
from tests.bench.attention_forms import LAYERS, ways

LENGTHS = (7, 12)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_results_are_the_same(monkeypatch: pytest.MonkeyPatch, name: str, window: int | None) -> None:
    monkeypatch.setattr(attention_forms, "DEVICE", torch.device("cpu"))
    torch.manual_seed(0)
    layer, tokens = LAYERS[name], sum(LENGTHS)
    query, key, value = (
        torch.randn(1, heads, tokens, layer.size) for heads in (layer.heads, layer.shared, layer.shared)
    )
    module = torch.nn.Module()
    module.num_key_value_groups = layer.heads // layer.shared  # type: ignore[assignment]
    module.sinks = sinks = torch.randn(layer.heads) if layer.sunk else None
    call = AttentionCall(module, query, key, value, None, window, layer.cap, sinks)
    found = {way: attend(call, LENGTHS) for way, attend in ways(layer).items()}
    torch.testing.assert_close(found["blocks"], found["eager"], rtol=1e-5, atol=1e-5)
