"""vLLM engines that share what they run on and are one to the job: as an accelerator has several."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from rljob_runtime.engines.factory import as_the_first
from rljob_runtime.engines.joint import JointEngine
from rljob_runtime.engines.protocol import EngineDied
from rljob_runtime.engines.vllm import VllmEngine
from tests.support.runtime.engines import started
from tests.support.runtime.tiny_models import (
    PLAIN,
    check_log_probs,
    perturbed,
    published,
    request,
    tiny_model,
    vllm_device,
    weights_at,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

ENGINES, SLOTS, RESPONSE = 3, 8, 100
"""Three: the last two start at the same time."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tiny_model(tmp_path_factory.mktemp("joint") / "model"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(base: Path) -> AsyncIterator[JointEngine]:
    names = [f"joint/{place}" for place in range(ENGINES)]
    # Not `vllm_engine`: the first finds out what room there is for all.
    inside = [VllmEngine(name, base, PLAIN, SLOTS, 256, **vllm_device()) for name in names]
    on_cpu = vllm_device()["accelerator"] == "cpu"
    async with started(
        JointEngine("joint", inside, None if on_cpu else partial(as_the_first, inside))
    ) as made:
        yield made


async def test_engines_that_start_at_the_same_time_share_no_registry(engine: JointEngine) -> None:
    assert len(engine.engines) == ENGINES
    assert not [metric.name for metric in REGISTRY.collect() if metric.name.startswith("vllm")]


async def test_a_version_reaches_all_while_each_runs_its_part(
    engine: JointEngine, base: Path, tmp_path: Path
) -> None:
    changed = perturbed(base, tmp_path / "v1", seed=1)
    parts = [await each.load_snapshot() for each in engine.engines]
    assert len({part.kv_tokens for part in parts}) == 1, "each has as much KV cache as the first"
    asked = [request(f"r{seed}", seed, max_tokens=RESPONSE, exact=True) for seed in range(ENGINES * SLOTS)]
    tasks = [asyncio.create_task(engine.submit(one)) for one in asked]
    async with asyncio.timeout(60):
        while (await engine.load_snapshot()).generated_tokens < 10 * len(asked):  # noqa: ASYNC110 - progress is told when asked
            await asyncio.sleep(0.002)
    await engine.pause("keep")
    assert [(await each.load_snapshot()).running for each in engine.engines] == [SLOTS] * ENGINES
    before = (await engine.load_snapshot()).generated_tokens
    await engine.load(weights_at(1, changed))
    await engine.resume()
    results = await asyncio.gather(*tasks)
    assert [len(got.tokens) for got in results] == [RESPONSE] * len(asked)
    of_old = sum(span.end - span.start for got in results for span in got.spans if span.version == 0)
    assert of_old == before
    check_log_probs(base, {0: base, 1: changed}, zip(asked, results, strict=True))


async def test_when_one_is_lost_all_end_and_tell_why(engine: JointEngine) -> None:
    """The last test: the engine is dead afterwards."""
    tasks = [
        asyncio.create_task(engine.submit(request(f"l{seed}", seed, max_tokens=200, exact=True)))
        for seed in range(ENGINES * SLOTS)
    ]
    await asyncio.sleep(0)
    # Paused, none of the others can end before it is known that one is lost.
    await engine.pause("keep")
    lost = engine.engines[1]._live_core().processes[0]  # type: ignore[attr-defined]
    lost.kill()
    async with asyncio.timeout(60):
        why = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in why} == {EngineDied}
    assert all("joint/1: its engine core" in str(each) for each in why)
    with pytest.raises(EngineDied, match="joint/1: its engine core"):
        await engine.pause("keep")
