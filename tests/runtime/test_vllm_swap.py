"""Versions that are put into a vLLM engine between two of its steps: whatever runs, every token is of the
weights of its version, and none is lost or there twice. The same of prompts that wait for one another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from rljob_runtime.engines.prefill_gate import MOST_STEPS
from rljob_runtime.engines.protocol import Request, WeightRef
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.samples import Generation
from tests.support.runtime.async_steps import async_steps
from tests.support.runtime.engines import beside_others, started
from tests.support.runtime.plain_linear import plain_linear
from tests.support.runtime.tiny_models import (
    PLAIN,
    VLLM_TOLERANCE,
    check_kept_kv,
    check_log_probs,
    perturbed,
    request,
    tiny_model,
    vllm_device,
    weights_at,
)
from tests.support.runtime.waiting_prompts import priced_prompts, steps_held, waiting_prompts

ON_CPUS = vllm_device()["accelerator"] == "cpu"
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

SECONDS = 120
SLOTS, BATCH, LENGTH = 12, 64, 256
"""Fewer slots than requests, and fewer tokens to a step than some prompts have: some requests wait, and of
some half of the prompt is computed, when a version is put in."""

STEPS = ["one step", "two steps"] if ON_CPUS else ["as they come"]
"""That are under way."""


class Site:
    """An engine, its versions, and what it generates."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.folders = {0: base}
        self.engine: VllmEngine
        self._made = 0

    def version(self) -> WeightRef:
        """A new one."""
        number = len(self.folders)
        self.folders[number] = perturbed(self.base, self.base.parent / f"v{number}", number)
        return weights_at(number, self.folders[number])

    def known(self, *versions: int) -> dict[int, Path]:
        return {version: self.folders[version] for version in versions}

    def ask(self) -> Request:
        self._made += 1
        long, length = self._made % 3 == 0, 10 + self._made * 29 % 90
        return request(f"r{self._made}", self._made, 150 if long else 20, length, exact=self._made % 5 > 0)

    async def more(self, tokens: int = 8) -> None:
        """Wait until so many more tokens are generated."""
        goal = (await self.engine.load_snapshot()).generated_tokens + tokens
        async with asyncio.timeout(SECONDS):
            while (await self.engine.load_snapshot()).generated_tokens < goal:  # noqa: ASYNC110 - asked
                await asyncio.sleep(0.001)

    async def put_in(self, ref: WeightRef, tokens: int = 8) -> None:
        """After so many more tokens, at least."""
        async with asyncio.timeout(SECONDS):
            await self.engine.prepare(ref)
            await self.more(tokens)
            assert await self.engine.swap(ref)
        assert self.engine.version == ref.version
        assert not (await self.engine.load_snapshot()).paused


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=STEPS)
async def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    root = tmp_path_factory.mktemp("swap")
    site = Site(tiny_model(root / "model", tied=True))
    with ExitStack() as stack:
        stack.enter_context(plain_linear(root / "plugin"))
        if request.param == "two steps":
            stack.enter_context(async_steps(root / "async"))
        stack.enter_context(priced_prompts())
        device = vllm_device()
        changed = {"max_batched_tokens": BATCH, "delay_prefills": True}
        options = device.pop("options").model_copy(update=changed)
        engine = beside_others(VllmEngine("swap", site.base, PLAIN, SLOTS, LENGTH, options=options, **device))
        async with started(engine) as site.engine:
            config = engine._live_core()._llm.vllm_config.scheduler_config
            assert not ON_CPUS or config.async_scheduling is (request.param == "two steps")
            assert site.engine.stages and not engine._live_core().swap_obstacle
            yield site


@pytest.mark.parametrize("keeps", [False, True], ids=["recompute", "keep"])
async def test_versions_are_put_in_while_requests_come_run_and_go(
    site: Site, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    monkeypatch.setattr(site.engine, "keeps_kv", keeps)
    before = site.engine.version
    refs = [site.version() for _ in range(8)]
    asked: list[tuple[Request, asyncio.Task[Generation]]] = []
    for ref in refs:
        for _ in range(6):
            one = site.ask()
            asked.append((one, asyncio.create_task(site.engine.submit(one))))
        if len(asked) % 12 == 0:
            await site.engine.abort(asked[-7][0].request_id)
        # Some end meanwhile, and others begin.
        await site.put_in(ref, 12 * SLOTS)
    async with asyncio.timeout(SECONDS):
        ended = [(one, await task) for one, task in asked]
    for one, got in ended:
        assert len(got.tokens) == len(got.log_probs)
        assert got.finish == "abort" or not one.exact or len(got.tokens) == one.max_tokens
        assert got.timing is not None and got.timing.preemptions == 0
        if keeps:
            assert got.timing.recomputed == 0.0
    known = site.known(*range(before, site.engine.version + 1))
    several = [(one, got) for one, got in ended if len(got.spans) > 1]
    assert len(several) >= 8 and max(len(got.spans) for _, got in several) >= 3
    if not keeps:
        check_log_probs(site.base, known, ended)
        return
    begun = [(one, got) for one, got in ended if len(got.tokens)]
    assert check_kept_kv(site.base, known, begun, PLAIN) > 100 * VLLM_TOLERANCE, "the KV was not kept"


@pytest.mark.parametrize("keeps", [False, True], ids=["recompute", "keep"])
async def test_prompts_of_old_weights_are_of_no_use_to_requests_of_new_ones(
    site: Site, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    monkeypatch.setattr(site.engine, "keeps_kv", keeps)
    ref, old = site.version(), site.engine.version
    first = request("old", 1, 130, 60, exact=True)
    running = asyncio.create_task(site.engine.submit(first))
    await site.put_in(ref)
    again = request("new", 1, 130, 20, exact=True)
    assert np.array_equal(first.tokens, again.tokens)
    got = await site.engine.submit(again)
    assert [span.version for span in (await running).spans] == [old, ref.version]
    check_log_probs(site.base, site.known(ref.version), [(again, got)])


@pytest.mark.parametrize("keeps", [False, True], ids=["recompute", "keep"])
async def test_it_goes_on_by_itself(site: Site, monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    """Nothing else is asked of the engine meanwhile."""
    monkeypatch.setattr(site.engine, "keeps_kv", keeps)
    ref, asked = site.version(), [site.ask() for _ in range(SLOTS)]
    running = [asyncio.create_task(site.engine.submit(one)) for one in asked]
    await site.engine.prepare(ref)
    await site.more()
    async with asyncio.timeout(SECONDS / 4):
        assert await site.engine.swap(ref)
        await asyncio.gather(*running)


async def test_an_engine_that_does_nothing_has_the_version_at_once(site: Site) -> None:
    ref = site.version()
    await site.engine.prepare(ref)
    assert await site.engine.swap(ref)
    one = site.ask()
    got = await site.engine.submit(one)
    assert {span.version for span in got.spans} == {ref.version}
    check_log_probs(site.base, site.known(ref.version), [(one, got)])


async def test_what_has_not_arrived_is_loaded_in_the_pause(site: Site) -> None:
    old, new = site.version(), site.version()
    one = site.ask()
    running = asyncio.create_task(site.engine.submit(one))
    await site.engine.prepare(old)
    before = site.engine.version
    assert not await site.engine.swap(new)
    assert site.engine.version == before
    await site.engine.pause("keep")
    with pytest.raises(RuntimeError, match="swap while paused"):
        await site.engine.swap(old)
    await site.engine.load(new)
    await site.engine.resume()
    got = await running
    assert {span.version for span in got.spans} <= {before, new.version}
    check_log_probs(site.base, site.known(before, new.version), [(one, got)])


async def test_a_pause_waits_until_a_version_is_put_in(site: Site) -> None:
    """And a caller that gives up leaves no token without its version."""
    ref, one, before = site.version(), site.ask(), site.engine.version
    running = asyncio.create_task(site.engine.submit(one))
    await site.engine.prepare(ref)
    await site.more()
    swapping = asyncio.create_task(site.engine.swap(ref))
    await asyncio.sleep(0)
    swapping.cancel()
    await site.engine.pause("keep")
    assert site.engine.version == ref.version
    await site.engine.resume()
    got = await running
    assert [span.version for span in got.spans] == [before, ref.version]
    check_log_probs(site.base, site.known(before, ref.version), [(one, got)])


@pytest.mark.parametrize("keeps", [False, True], ids=["recompute", "keep"])
async def test_prompts_that_wait_for_one_another_are_generated_as_others(
    site: Site, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """While versions are put in between two steps and in a pause, and requests are aborted: one that waits,
    one that runs, and all."""
    monkeypatch.setattr(site.engine, "keeps_kv", keeps)
    first, held = site.engine.version, await steps_held(site.engine)
    asked: list[tuple[Request, asyncio.Task[Generation]]] = []

    async def begin(*requests: Request) -> None:
        for one in requests:
            asked.append((one, asyncio.create_task(site.engine.submit(one))))
            await site.more()

    def long() -> Request:
        """Runs as long as others come."""
        return request(f"long{len(site.folders)}", len(site.folders), 20, 210, exact=True)

    async with asyncio.timeout(SECONDS), waiting_prompts(site.engine, 5.0):
        await begin(long(), *(site.ask() for _ in range(9)))
        await site.put_in(site.version())
        await begin(*(site.ask() for _ in range(6)))
        await site.engine.abort(asked[-1][0].request_id)
        await site.engine.abort(next(one for one, task in asked[1:] if not task.done()).request_id)
        await site.engine.pause("keep")
        await site.engine.load(site.version())
        await site.engine.resume()
        await begin(*(site.ask() for _ in range(5)))
        ended = [(one, await task) for one, task in asked]
        assert sum(got.finish == "abort" for _, got in ended) <= 2
        asked.clear()
        await begin(long(), *(site.ask() for _ in range(3)))
        await site.engine.pause("abort")
        await site.engine.resume()
        ended += [(one, await task) for one, task in asked]
    assert await steps_held(site.engine) >= held + 20
    for one, got in ended:
        assert len(got.tokens) == len(got.log_probs)
        assert got.finish == "abort" or not one.exact or len(got.tokens) == one.max_tokens
    known = site.known(*range(first, site.engine.version + 1))
    begun = [(one, got) for one, got in ended if len(got.tokens)]
    if keeps:
        check_kept_kv(site.base, known, begun, PLAIN)
    else:
        check_log_probs(site.base, known, begun)


async def test_a_prompt_waits_for_a_bounded_number_of_steps(site: Site) -> None:
    """And for none where nothing runs."""
    held = await steps_held(site.engine)
    long, short = request("long", 1, 20, 220, exact=True), request("short", 2, 20, 10, exact=True)
    async with asyncio.timeout(SECONDS), waiting_prompts(site.engine, 1e9):
        running = asyncio.create_task(site.engine.submit(long))
        await site.more()
        assert await steps_held(site.engine) == held
        await site.engine.submit(short)
        assert not running.done()
        assert held < await steps_held(site.engine) <= held + MOST_STEPS
        await running
