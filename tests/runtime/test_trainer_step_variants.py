"""Each variant of `tests/bench/trainer_step.py` makes the same steps, without what it leaves off."""

import argparse
from pathlib import Path

import pytest
import torch

from tests.bench.trainer_step import GAINS, measure
from tests.bench.trainer_step_shapes import SHAPES, write_model

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="compares steps in float32, on CPUs")

# Layers are compiled in seconds at best, and on accelerators anyway.
EVERY = frozenset(GAINS) - {"compile"}
VARIANTS = {"base": frozenset[str](), **{f"no-{gain}": EVERY - {gain} for gain in sorted(EVERY)}}
SHAPE = SHAPES["tiny"]
OPTIONS = argparse.Namespace(warm=0, steps=1, micro_batch=None, logits_mib=None, recompute=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("variants") / "model"
    write_model(SHAPE, folder)
    return folder


@pytest.fixture(scope="module")
def whole(model: Path) -> dict[str, float]:
    """The figures of a step with every gain."""
    return measure(SHAPE, EVERY, model, OPTIONS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_trains_what_all_gains_train(model: Path, whole: dict[str, float], variant: str) -> None:
    found = measure(SHAPE, VARIANTS[variant], model, OPTIONS)
    for figure in ("loss", "grad_norm"):
        assert found[figure] == pytest.approx(whole[figure], rel=1e-4), figure
    assert found["tokens"] == whole["tokens"]
