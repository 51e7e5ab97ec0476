"""Plain tokens that are spared vLLM's way: its scheduler does the same with them as without, step by step."""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from rljob_runtime.engines import vllm_plain_tokens
from rljob_runtime.engines.vllm_blocks import Sparing
from rljob_runtime.engines.vllm_misfits import tell_misfits
from rljob_runtime.engines.vllm_scheduler import Holding
from tests.support.runtime.tiny_models import tiny_model
from tests.support.runtime.vllm_schedulers import BLOCK, Steps
from tests.support.runtime.vllm_told import KINDS, SIZES, alike, another


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("plain") / "model", tied=True)


def counted(steps: Steps) -> tuple[list[int], list[int]]:
    """Of each step to come that has plain tokens: how many tokens, and how many are left to vLLM."""
    plain, scheduled, left = steps.scheduler._plain, [], []
    own: Callable[..., dict[str, int]] = plain.keep

    def keep(asked: Any, *given: Any) -> dict[str, int]:
        found = own(asked, *given)
        scheduled.append(len(asked.num_scheduled_tokens))
        left.append(len(found))
        return found

    plain.keep = keep
    return scheduled, left


@pytest.mark.parametrize("blocks", [200, 24], ids=["room for all", "requests are pre-empted"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_and_every_request_is_as_without(model: Path, kind: str, blocks: int) -> None:
    own, spared = (
        Steps(model, (Sparing, Holding), **{**SIZES, "blocks": blocks}, **KINDS[kind]) for _ in range(2)
    )
    own.scheduler._plain = None
    scheduled, left = counted(spared)
    assert alike(own, spared, random.Random(kind)) == (blocks < 100)
    if kind in ("two steps under way", "one step"):
        assert sum(left) < 0.4 * sum(scheduled)


def test_a_response_takes_the_longer_way_for_each_block_and_at_its_end(model: Path) -> None:
    steps = Steps(model, (Sparing, Holding), **SIZES)
    scheduled, left = counted(steps)
    steps.add("r", range(BLOCK), 5 * BLOCK)
    for _ in range(5 * BLOCK + 2):
        steps.step()
    assert not steps.scheduler.requests
    # The first token, with what is told of it; a block's last one, and the one that has it found; the last.
    assert sum(scheduled) == 5 * BLOCK
    assert 5 < sum(left) <= 1 + 2 * 5 + 1


def test_what_is_known_of_requests_is_forgotten_with_them(model: Path) -> None:
    steps = Steps(model, (Sparing, Holding), **SIZES)
    for number in range(200):
        steps.add(f"r{number}", range(5), 9)
    while steps.scheduler.requests:
        steps.step()
    assert not steps.scheduler._outputs
    assert 0 < len(steps.scheduler._plain.known) <= vllm_plain_tokens._ENDED + SIZES["requests"]


def test_windows_and_a_version_that_differs_take_each_token_in_themselves(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert Steps(model, (Holding,), **SIZES, window=32).scheduler._plain is None
    caplog.clear()
    with caplog.at_level(logging.INFO):
        tell_misfits()
    assert not caplog.messages
    monkeypatch.setattr(
        Scheduler, "_update_request_with_output", another(Scheduler._update_request_with_output)
    )
    assert Steps(model, (Holding,), **SIZES).scheduler._plain is None
    with caplog.at_level(logging.INFO):
        tell_misfits()
    assert "this version of vLLM differs in Scheduler._update_request_with_output" in caplog.text
