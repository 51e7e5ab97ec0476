"""Each variant of `tests/bench/trainer_step.py` makes the same steps, without what it leaves off."""

import argparse
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api import RLJob
from tests.bench import trainer_step
from tests.bench.trainer_step import GAINS, measure, worker
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


def weights(model: Path, earlier: list[Any]) -> list[Any]:
    """References to a rank's weights; of the `earlier` ones none is there when it is."""
    with worker(SHAPE, EVERY, model, OPTIONS) as trainer:
        assert not [each for each in earlier if each() is not None]
        return [weakref.ref(each) for each in trainer._policy.parameters()]


def test_the_weights_of_a_variant_are_gone_when_the_next_is_made(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is measured of one model. In bfloat16, for what FSDP wraps only the garbage collector frees."""
    plain = trainer_step.job

    def narrow(*given: Any) -> RLJob:
        made = plain(*given).model_dump(mode="json", by_alias=True, exclude_none=True)
        made["spec"]["training"]["model"]["dtype"] = "bfloat16"
        return RLJob.model_validate(made)

    monkeypatch.setattr(trainer_step, "job", narrow)
    # No collection but the bench's own.
    was = gc.isenabled()
    gc.disable()
    try:
        earlier = weights(model, [])
        weights(model, earlier)
    finally:
        if was:
            gc.enable()
