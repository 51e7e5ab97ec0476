"""The torch engine's slots do not see each other."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rljob_runtime.engines.torch_model import SlotModel, _attend
from tests.support.runtime.tiny_models import tiny_model

SLOTS, LENGTH = 5, 24


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[SlotModel, SlotModel]:
    folder = tiny_model(tmp_path_factory.mktemp("slots") / "model")
    torch.set_num_threads(1)
    return SlotModel(folder, SLOTS, LENGTH, "float32"), SlotModel(folder, SLOTS, LENGTH, "float32")


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_slots_are_independent_bit_for_bit(models: tuple[SlotModel, SlotModel], data: st.DataObject) -> None:
    """Random sequences in random slots, started at random steps, against each alone in slot 0."""
    together, alone = models
    tokens = st.lists(st.integers(0, 63), min_size=1, max_size=LENGTH)
    sequences = data.draw(st.lists(tokens, min_size=1, max_size=SLOTS))
    places = data.draw(st.permutations(range(SLOTS)))[: len(sequences)]
    delays = data.draw(st.lists(st.integers(0, 6), min_size=SLOTS, max_size=SLOTS))
    rows: dict[int, list[torch.Tensor]] = {slot: [] for slot in places}
    for step in range(LENGTH + 6):
        inputs, positions = np.zeros(SLOTS, np.int64), np.zeros(SLOTS, np.int64)
        running = []
        for sequence, slot, delay in zip(sequences, places, delays, strict=False):
            if 0 <= step - delay < len(sequence):
                inputs[slot], positions[slot] = sequence[step - delay], step - delay
                running.append(slot)
        logits = together.step(inputs, positions)
        for slot in running:
            rows[slot].append(logits[slot].clone())
    for sequence, slot in zip(sequences, places, strict=False):
        for position, token in enumerate(sequence):
            inputs, positions = np.zeros(SLOTS, np.int64), np.zeros(SLOTS, np.int64)
            inputs[0], positions[0] = token, position
            assert torch.equal(alone.step(inputs, positions)[0], rows[slot][position])


@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_heads_that_share_keys_attend_as_in_transformers(key_heads: int) -> None:
    """There keys and values are copied for each head."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 4, 1, 8, generator=generator)
    key, value = (torch.randn(3, key_heads, 10, 8, generator=generator) for _ in range(2))
    hidden = torch.arange(10)[None, None, None] > torch.tensor([0, 4, 9])[:, None, None, None]
    mask = torch.zeros(3, 1, 1, 10).masked_fill(hidden, torch.finfo(torch.float32).min)
    module: Any = torch.nn.Module()
    module.num_key_value_groups = 4 // key_heads
    expected, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    found, _ = _attend(module, query, key, value, mask, scaling=0.3)
    torch.testing.assert_close(found, expected)
