"""What the bench of a step's memory counts, without memory, is what there would be."""

from dataclasses import replace

import pytest

from rljob_runtime.trainer import log_probs
from rljob_runtime.trainer.attention import register_attention
from tests.bench.step_memory import counted, one_rank
from tests.bench.trainer_step_shapes import SHAPES

SHAPE = replace(SHAPES["tiny"], vocabulary=4096)
TOKENS = 640
LAYER = 2 * 64 * 128 + 2 * 64 * 64 + 3 * 64 * 192 + 2 * 64 + 2 * 32
"""Weights of one of its two layers."""


def mib(on: set[str], logits_mib: int | None = None, shape: object = SHAPE) -> float:
    return 1024 * counted(shape, frozenset(on), logits_mib, TOKENS)[1]  # type: ignore[arg-type]


def test_what_is_held_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # Copies of logits in float32 are small beside them.
    monkeypatch.setattr(log_probs, "_SLICE", 16 * SHAPE.vocabulary)
    register_attention()
    with one_rank():
        state, _ = counted(SHAPE, frozenset(), None, TOKENS)
        assert state * 2**30 == 12 * (4096 * 64 + 2 * LAYER + 64)
        # Logits in bfloat16, of 512 tokens that are predicted: 4 MiB, of which 1 or 4 are there at a time.
        narrow, wide = mib({"logits"}, 1), mib({"logits"}, 4)
        assert 2 < wide - narrow < 4
        # Of each layer and token that is added, the more is kept.
        deeper = mib({"logits"}, 1, replace(SHAPE, layers=4))
        assert deeper - narrow > 2 * LAYER * 12 / 2**20
        # Weights in bfloat16, all at once in place of a layer's.
        assert mib({"logits", "hold"}, 1) > narrow
