"""Versions that are adapters, on a real vLLM engine: exact for each token, whatever runs meanwhile.

One engine for all; the last test ends it.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from rljob_api.adapter import Adapter
from rljob_runtime.engines.protocol import EngineDied, Request
from rljob_runtime.engines.vllm_adapter import AdapterEngine
from rljob_runtime.engines.vllm_shape import AdapterRoom
from rljob_runtime.samples import Generation
from rljob_runtime.weights.adapter import TENSORS, adapter_shapes, config, write
from rljob_runtime.weights.contents import tensor_shapes
from tests.support.runtime.engines import started
from tests.support.runtime.tiny_models import (
    PLAIN,
    published,
    request,
    tiny_model,
    vllm_device,
    weights_at,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

ADAPTER = Adapter(rank=4, alpha=12, target_modules=["q_proj", "v_proj", "o_proj"])
PARITY = 1e-5
"""Nats, in float32."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with experts, which have no adapter; one without is in `test_run_adapter`."""
    return tiny_model(tmp_path_factory.mktemp("adapter") / "model", "qwen3_moe")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(base: Path) -> AsyncIterator[AdapterEngine]:
    made = AdapterEngine(
        ADAPTER, AdapterRoom(4, running=3, kept=4), "adapted", base, PLAIN, 16, 512, **vllm_device()
    )
    async with started(made) as engine:
        yield engine


def adapter_folder(base: Path, folder: Path, seed: int) -> Path:
    """A random adapter, published as a trainer's store would; large enough that another one shows."""
    generator = torch.Generator().manual_seed(seed)
    shapes = tensor_shapes(base)
    tensors = {
        name: 0.15 * torch.randn(shape, generator=generator)
        for name, shape in adapter_shapes(shapes, ADAPTER).items()
    }
    write(published(folder), tensors, config(shapes, ADAPTER, str(base)))
    return folder


@cache
def peft_model(base: Path, folder: Path | None) -> Any:
    """What peft makes of an adapter's folder."""
    model = AutoModelForCausalLM.from_pretrained(base)
    return (model if folder is None else PeftModel.from_pretrained(model, folder)).eval()


@torch.inference_mode()
def gap(model: Any, asked: Request, got: Generation) -> float:
    """How far the log-probabilities of a response are from a model's, in nats, at most."""
    tokens = torch.from_numpy(np.concatenate([asked.tokens, got.tokens]).astype(np.int64))
    start = len(asked.tokens)
    logits = model(tokens[None]).logits[0, start - 1 : -1]
    exact = logits.log_softmax(-1).gather(1, tokens[start:, None])[:, 0]
    return float(np.abs(exact.numpy() - got.log_probs).max())


async def bring(engine: AdapterEngine, version: int, folder: Path, mode: Any = "keep") -> None:
    await engine.pause(mode)
    await engine.load(weights_at(version, folder))
    await engine.resume()


async def begun(engine: AdapterEngine, tasks: "list[asyncio.Task[Generation]]") -> None:
    """Return when more tokens have been generated than now."""
    before = (await engine.load_snapshot()).generated_tokens
    async with asyncio.timeout(60):
        # Progress is told when asked.
        while (await engine.load_snapshot()).generated_tokens <= before:
            assert not all(task.done() for task in tasks)
            await asyncio.sleep(0.002)


async def test_every_version_is_exact_though_prompts_are_cached(
    engine: AdapterEngine, base: Path, tmp_path: Path
) -> None:
    """The same long prompts for each version: what is cached of them for one must not serve another. Version
    3 comes twice, with other weights, as after a trainer that went back to its checkpoint."""
    folders: list[Path | None] = [None]
    asked = [request(f"v0-{seed}", seed, length=200, max_tokens=20) for seed in range(4)]
    for index, version in enumerate((0, 1, 2, 3, 3)):
        if index:
            folders.append(adapter_folder(base, tmp_path / f"folder{index}", seed=index))
            await bring(engine, version, folders[-1])  # type: ignore[arg-type]
        again = [Request(f"{index}-{one.seed}", one.tokens, 20, one.seed) for one in asked]
        results = await asyncio.gather(*[engine.submit(one) for one in again])
        for one, got in zip(again, results, strict=True):
            assert [span.version for span in got.spans] == [version]
            assert gap(peft_model(base, folders[-1]), one, got) <= PARITY
        if index:
            assert gap(peft_model(base, folders[-2]), again[0], results[0]) > 0.05, "another one shows"


async def test_an_adapter_of_a_model_with_sinks(tmp_path: Path) -> None:
    """vLLM takes no other new weights of this one (`weights.vllm_engine_limits`)."""
    base = tiny_model(tmp_path / "model", "gpt_oss")
    made = AdapterEngine(
        ADAPTER, AdapterRoom(4, running=1, kept=2), "sinks", base, PLAIN, 4, 128, **vllm_device()
    )
    async with started(made) as engine:
        folder = adapter_folder(base, tmp_path / "v1", seed=1)
        await bring(engine, 1, folder)
        asked = [request(f"sinks-{seed}", seed, length=20, max_tokens=40) for seed in range(4)]
        results = await asyncio.gather(*[engine.submit(one) for one in asked])
    for one, got in zip(asked, results, strict=True):
        assert gap(peft_model(base, folder), one, got) <= PARITY


async def test_what_runs_is_finished_with_its_adapter_and_nothing_stands_still(
    engine: AdapterEngine, base: Path, tmp_path: Path
) -> None:
    """Four versions run beside each other, in an engine with room for three of them at a time."""
    tasks: list[asyncio.Task[Generation]] = []
    asked: list[Request] = []
    folders: dict[int, Path] = {}
    for version in (10, 11, 12, 13):
        folders[version] = adapter_folder(base, tmp_path / f"v{version}", version)
        await bring(engine, version, folders[version])
        new = [request(f"{version}-{seed}", seed, max_tokens=400, exact=True) for seed in range(3)]
        asked += new
        tasks += [asyncio.create_task(engine.submit(one)) for one in new]
        await begun(engine, tasks)
    await engine.pause("keep")
    await begun(engine, tasks)
    assert not tasks[-1].done()
    await engine.resume()
    results = await asyncio.gather(*tasks)
    for one, got in zip(asked, results, strict=True):
        [span] = got.spans
        assert (span.version, len(got.tokens)) == (int(one.request_id.partition("-")[0]), 400)
        assert gap(peft_model(base, folders[span.version]), one, got) <= PARITY


async def test_what_is_taken_out_goes_on_with_the_new_adapter(
    engine: AdapterEngine, base: Path, tmp_path: Path
) -> None:
    first, second = (adapter_folder(base, tmp_path / f"v{version}", version) for version in (20, 21))
    await bring(engine, 20, first)
    one = request("cut", max_tokens=400, exact=True)
    task = asyncio.create_task(engine.submit(one))
    await begun(engine, [task])
    await bring(engine, 21, second, "abort")
    head = await task
    assert head.finish == "abort"
    assert 0 < len(head.tokens) < 400
    assert gap(peft_model(base, first), one, head) <= PARITY
    rest = Request("rest", np.concatenate([one.tokens, head.tokens]), 10, 0, generated=len(head.tokens))
    tail = await engine.submit(rest)
    assert [span.version for span in tail.spans] == [21]
    assert gap(peft_model(base, second), rest, tail) <= PARITY


async def test_a_folder_stays_while_it_is_generated_with(
    engine: AdapterEngine, base: Path, tmp_path: Path
) -> None:
    await bring(engine, 30, adapter_folder(base, tmp_path / "v30", 30))
    task = asyncio.create_task(engine.submit(request("holds", max_tokens=400, exact=True)))
    await begun(engine, [task])
    await bring(engine, 31, adapter_folder(base, tmp_path / "v31", 31))
    assert [held.loaded.folder.name for held in engine._held.values()] == ["v30", "v31"]
    await task
    assert [held.loaded.folder.name for held in engine._held.values()] == ["v31"]


async def test_an_adapter_that_is_not_whole_is_refused_and_the_one_before_stays(
    engine: AdapterEngine, base: Path, tmp_path: Path
) -> None:
    await bring(engine, 40, adapter_folder(base, tmp_path / "good", 40))
    shapes = tensor_shapes(base)
    other = Adapter(rank=2, target_modules=["q_proj"])
    cut = published(tmp_path / "cut")
    write(cut, {name: torch.zeros(shape) for name, shape in adapter_shapes(shapes, other).items()}, {})
    await engine.pause("keep")
    with pytest.raises(ValueError, match=r"lora_A\.weight is missing"):
        await engine.load(weights_at(41, cut))
    with pytest.raises(FileNotFoundError, match=r"no \*\.safetensors"):
        await engine.load(weights_at(41, published(tmp_path / "empty")))
    await engine.resume()
    asked = request("after")
    got = await engine.submit(asked)
    assert [span.version for span in got.spans] == [40]
    assert gap(peft_model(base, tmp_path / "good"), asked, got) <= PARITY


async def test_an_adapter_that_reaches_no_layer_ends_the_engine(
    engine: AdapterEngine, base: Path, tmp_path: Path
) -> None:
    """vLLM itself takes it without a word, and generates as if there were none."""
    folder = adapter_folder(base, tmp_path / "elsewhere", 50)
    from safetensors.torch import load_file, save_file

    moved = {name.replace(".layers.", ".layers.7"): it for name, it in load_file(folder / TENSORS).items()}
    save_file(moved, folder / TENSORS)
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4
    engine._tensors = tensor_shapes(folder)  # so that nothing but the core finds out
    await engine.pause("keep")
    with pytest.raises(EngineDied, match="0 of 12 tensors of the adapter reached a layer"):
        await engine.load(weights_at(51, folder))
