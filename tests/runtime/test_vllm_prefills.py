"""Prompts that wait for one another in vLLM's own scheduler, without an engine around it."""

import random
from pathlib import Path

import pytest

from rljob_runtime.engines.prefill_gate import Costs, StepTimes
from rljob_runtime.engines.vllm_blocks import Sparing
from rljob_runtime.engines.vllm_plain_steps import Continuing
from rljob_runtime.engines.vllm_prefills import Delaying
from rljob_runtime.engines.vllm_scheduler import Holding
from tests.support.runtime.tiny_models import tiny_model
from tests.support.runtime.vllm_schedulers import Steps

PLACES, LONGEST = 32, 160


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("prefills") / "model", tied=True)


def beginnings(model: Path, parts: tuple[type, ...], blocks: int) -> list[int]:
    """How many requests began in each step that any began in, where others always wait."""
    drawn = random.Random(1)
    steps = Steps(model, parts, requests=PLACES, blocks=blocks, tokens=2048, longest=LONGEST)
    begun, added = [], 0
    for number in range(400):
        while len(steps.scheduler.waiting) < PLACES:
            prompt = [drawn.randrange(60) for _ in range(drawn.randrange(20, 80))]
            steps.add(f"r{(added := added + 1)}", prompt, drawn.randrange(10, 75))
        new = len(steps.step().scheduled_new_reqs)
        if number > 100 and new:
            begun.append(new)
    return begun


@pytest.mark.parametrize(
    ("blocks", "share"),
    [
        pytest.param(400, 0.25, id="places are all taken"),
        pytest.param(70, 0.6, id="the KV cache is full"),
    ],
)
def test_most_steps_of_a_full_engine_only_decode(
    model: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, share: float
) -> None:
    monkeypatch.setattr(StepTimes, "costs", lambda self: Costs(pure=1.0, extra=4.0))
    plain = beginnings(model, (Sparing, Holding), blocks)
    delayed = beginnings(model, (Delaying, Sparing, Continuing, Holding), blocks)
    assert len(delayed) < share * len(plain)
    # Places that stand empty for as long as a step with prompts costs the others.
    assert sum(delayed) > 0.75 * sum(plain)
