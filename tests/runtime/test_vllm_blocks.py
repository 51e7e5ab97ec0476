"""A KV cache manager that is spared the way through its layers: vLLM's scheduler does the same with it as
without, step by step."""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm.v1 import utils
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

from rljob_runtime.engines.vllm_blocks import Sparing, blocks_misfit, spare
from rljob_runtime.engines.vllm_misfits import tell_misfits
from rljob_runtime.engines.vllm_scheduler import Holding
from rljob_runtime.engines.vllm_swap import compute_anew
from tests.support.runtime.tiny_models import tiny_model
from tests.support.runtime.vllm_schedulers import BLOCK, Steps
from tests.support.runtime.vllm_told import kept, told

LONGEST = 160


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("blocks") / "model", tied=True)


@pytest.mark.parametrize("blocks", [200, 24], ids=["room for all", "requests are pre-empted"])
@pytest.mark.parametrize(
    "kind",
    [{}, {"asynchronous": False}, {"asynchronous": False, "drafts": 3}, {"caching": False}],
    ids=["two steps under way", "one step", "drafts", "no prompts looked up"],
)
def test_every_step_and_every_block_is_as_without(model: Path, kind: dict[str, Any], blocks: int) -> None:
    drawn = random.Random(str(kind))
    sizes: dict[str, Any] = {"requests": 8, "blocks": blocks, "tokens": 64, "longest": LONGEST}
    both = [Steps(model, parts, **sizes, **kind) for parts in ((Holding,), (Sparing, Holding))]
    assert {isinstance(each.scheduler, AsyncScheduler) for each in both} == {kind.get("asynchronous", True)}
    plain, spared = both
    prompts = [[drawn.randrange(60) for _ in range(drawn.randrange(1, 70))] for _ in range(6)]
    preempted = False
    for number in range(400):
        if drawn.random() < 0.2:
            prompt, tokens = drawn.choice(prompts), drawn.randrange(1, 90)
            for each in both:
                each.add(f"r{number}", prompt, tokens)
        if drawn.random() < 0.02 and plain.scheduler.requests:
            name = drawn.choice(sorted(plain.scheduler.requests))
            for each in both:
                each.abort(name)
        if cleared := drawn.random() < 0.01:
            for each in both:
                each.drain()
                compute_anew(each.scheduler)
        step, other = (each.step() for each in both)
        assert told(step) == told(other), f"step {number}"
        preempted |= bool(step.preempted_req_ids) and not cleared
        assert kept(plain) == kept(spared), f"step {number}"
    assert preempted == (blocks < 100)


def test_a_response_takes_the_longer_way_once_for_each_block(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(model, (Holding,), requests=2, blocks=40, tokens=64, longest=LONGEST)
    cache, asked = steps.scheduler.kv_cache_manager, []
    allocate = cache.allocate_slots

    def counted(request: Any, *given: Any, **named: Any) -> Any:
        asked.append(request)
        return allocate(request, *given, **named)

    monkeypatch.setattr(cache, "allocate_slots", counted)
    assert not blocks_misfit() and spare(cache)
    steps.add("r", range(BLOCK), 5 * BLOCK)
    for _ in range(5 * BLOCK):
        steps.step()
    # The prompt, then where a block is needed and where one has become full.
    assert 5 <= len(asked) <= 1 + 2 * 5


def test_windows_are_left_as_they_are(model: Path) -> None:
    sizes: dict[str, Any] = {"requests": 2, "blocks": 40, "tokens": 64, "longest": LONGEST}
    windows = Steps(model, (Holding,), **sizes, window=32).scheduler.kv_cache_manager
    before = windows.allocate_slots
    assert not spare(windows) and windows.allocate_slots == before


class _Renamed:
    """A scheduler whose KV cache manager has another shape."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        del self.kv_cache_manager.coordinator.single_type_managers  # type: ignore[attr-defined]


def test_a_version_that_differs_is_left_as_it_is_and_the_log_says_so(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        tell_misfits()
    assert not caplog.messages
    # Not only inherited any more.
    monkeypatch.setattr(FullAttentionManager, "remove_skipped_blocks", lambda *_: None, raising=False)
    # Not told to be what is looked for.
    monkeypatch.setattr(KVCacheCoordinator, "__init__", _unlike(KVCacheCoordinator.__init__))
    sizes: dict[str, Any] = {"requests": 2, "blocks": 40, "tokens": 64, "longest": LONGEST}
    scheduler = Steps(model, (Sparing, _Renamed, Holding), **sizes).scheduler
    assert not {"allocate_slots", "cache_blocks"} & vars(scheduler.kv_cache_manager).keys()
    with caplog.at_level(logging.INFO):
        tell_misfits()
    assert "this version of vLLM differs in KVCacheCoordinator, FullAttentionManager" in caplog.text


def _unlike(function: Any) -> Any:
    """The same function by a text that does not tell what it does."""
    return lambda *given, **named: function(*given, **named)


def test_a_profiler_has_its_scopes_where_there_is_one(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, Any] = {"requests": 2, "blocks": 40, "tokens": 64, "longest": LONGEST}
    scopes: list[str] = []

    @contextmanager
    def scope(name: str) -> Iterator[None]:
        scopes.append(name)
        yield

    for profiled in (False, True):
        if profiled:
            monkeypatch.setattr(utils, "_PROFILER_FUNC", scope)
        steps = Steps(model, (Sparing, Holding), **sizes)
        monkeypatch.setattr(utils, "_PROFILER_FUNC", scope)
        scopes.clear()
        steps.add("r", range(BLOCK), 5)
        steps.step()
        assert bool(scopes) is profiled
        own = Steps(model, (Holding,), **sizes)
        own.add("r", range(BLOCK), 5)
        own.step()
        assert scopes, "one of vLLM's own has them in any case"
