"""Plain steps that are spared vLLM's way: its scheduler does the same with them as without."""

import logging
import random
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from rljob_runtime.engines import vllm_plain_steps
from rljob_runtime.engines.vllm_blocks import Sparing
from rljob_runtime.engines.vllm_misfits import tell_misfits
from rljob_runtime.engines.vllm_plain_steps import Continuing
from rljob_runtime.engines.vllm_scheduler import Holding
from tests.support.runtime.tiny_models import tiny_model
from tests.support.runtime.vllm_schedulers import Steps
from tests.support.runtime.vllm_told import KINDS, SIZES, alike, another

PARTS = (Sparing, Continuing, Holding)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("plain") / "model", tied=True)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_plain_steps, "_FEWEST", 1)


def plain_steps(steps: Steps) -> list[bool]:
    """Of each step to come whether it was plain."""
    found, own = [], steps.scheduler._plain_step
    asked = steps.scheduler.schedule

    def plain() -> Any:
        step = own()
        found[-1] = step is not None
        return step

    def schedule() -> Any:
        found.append(False)
        return asked()

    steps.scheduler._plain_step, steps.scheduler.schedule = plain, schedule
    return found


@pytest.mark.parametrize("second", [False, True], ids=["first runner", "second runner"])
@pytest.mark.parametrize("blocks", [200, 24], ids=["room for all", "requests are pre-empted"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_and_every_request_is_as_without(
    model: Path, kind: str, blocks: int, second: bool
) -> None:
    sizes = {**SIZES, "blocks": blocks, **KINDS[kind], "second_runner": second}
    own, spared = Steps(model, (Sparing, Holding), **sizes), Steps(model, PARTS, **sizes)
    own.scheduler._plain = None
    assert isinstance(own.scheduler, AsyncScheduler) == KINDS[kind].get("asynchronous", True)
    assert own.scheduler.use_v2_model_runner == second
    found = plain_steps(spared)
    assert alike(own, spared, random.Random(kind)) == (blocks < 100)
    assert sum(found) > (0 if kind == "drafts" else 100)


def test_requests_begin_beside_those_that_go_on_and_a_prompt_goes_on_alone(model: Path) -> None:
    steps = Steps(model, PARTS, **SIZES)
    found = plain_steps(steps)
    steps.add("first", range(20), 40)
    asked = [steps.step() for _ in range(10)]
    # The prompt is vLLM's.
    assert found == [False, *[True] * 9]
    # With more tokens than a step may have.
    steps.add("second", [7] * (SIZES["tokens"] + 10), 40)
    asked = [steps.step() for _ in range(3)]
    assert found[10:] == [True, False, True]
    assert [each.num_scheduled_tokens for each in asked] == [
        {"first": 1, "second": SIZES["tokens"] - 1}, {"first": 1, "second": 11}, {"first": 1, "second": 1},
    ]  # fmt: skip


def test_few_requests_and_a_version_that_differs_are_left_as_they_are(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.undo()
    steps = Steps(model, PARTS, **SIZES)
    for number in range(vllm_plain_steps._FEWEST):
        steps.add(f"r{number}", range(20), 40 + number)
    found = plain_steps(steps)
    while steps.scheduler.requests:
        steps.step()
    # Until the first is known to have ended, one step after its last one.
    assert sum(found) == 40
    caplog.clear()
    with caplog.at_level(logging.INFO):
        tell_misfits()
    assert not caplog.messages
    monkeypatch.setattr(Scheduler, "_update_after_schedule", another(Scheduler._update_after_schedule))
    assert not Steps(model, PARTS, **SIZES).scheduler._serves
    with caplog.at_level(logging.INFO):
        tell_misfits()
    assert "this version of vLLM differs in Scheduler._update_after_schedule" in caplog.text
