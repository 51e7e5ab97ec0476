"""How verl's trainer is measured where kernels or memory are wanting, and what it is compared with."""

import importlib.util
import sys

import pytest
import torch

from tests.bench.verl_step import FLASH, TORCH, Attempt, offer_kernels, ours

OUT_OF_MEMORY, OTHER = torch.OutOfMemoryError("no memory"), RuntimeError("no such kernel")
WISHED = Attempt(FLASH, 16384)


@pytest.mark.parametrize(
    ("attempt", "error", "proven", "following"),
    [
        (WISHED, OUT_OF_MEMORY, True, Attempt(FLASH, 8192)),
        (Attempt(FLASH, 8192), OUT_OF_MEMORY, True, Attempt(FLASH, 4096)),
        (Attempt(FLASH, 4096), OUT_OF_MEMORY, True, None),
        (WISHED, OTHER, False, Attempt(TORCH, 16384)),
        (WISHED, OTHER, True, None),
        (Attempt(TORCH, 16384), OTHER, False, None),
    ],
)
def test_what_is_tried_after_an_error(attempt, error, proven, following):
    assert attempt.after(error, 4096, proven) == following


@pytest.mark.parametrize(
    ("attempt", "remark"),
    [
        (WISHED, ""),
        (Attempt(TORCH, 16384), ", attention sdpa"),
        (Attempt(FLASH, 8192), ", micro-batch 8192"),
        (Attempt(TORCH, 8192), ", attention sdpa, micro-batch 8192"),
    ],
)
def test_a_figure_is_named_for_what_it_had_to_do_without(attempt, remark):
    assert attempt.remark(WISHED) == remark


def test_ours_of_the_same_shape_with_all_gains():
    rows = [
        {"name": "trainer step, 1.7b, base", "unit": "TFLOP/s", "value": 100.0},
        {"name": "trainer step, 1.7b, all", "unit": "TFLOP/s", "value": 300.0},
        {"name": "trainer step, 1.7b, all: tokens", "unit": "tokens/s", "value": 20_000.0},
        {"name": "trainer step, 0.6b, all", "unit": "TFLOP/s", "value": 200.0},
    ]
    assert ours(rows, "1.7b") == {"TFLOP/s": 300.0, "tokens/s": 20_000.0}
    assert ours(rows, "tiny") == {}


def test_the_stand_in_for_kernels_of_flash_attn_is_found_by_itself(monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not entry.endswith("/kernels")])
    offer_kernels()
    assert importlib.util.find_spec("flash_attn_2_cuda") is not None
    offered = list(sys.path)
    offer_kernels()
    assert sys.path == offered
