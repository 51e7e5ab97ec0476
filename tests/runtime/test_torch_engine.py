"""The torch engine beyond the contract: exact reproducibility, families, sampling, errors."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from rljob_runtime.engines.protocol import EngineDied, Request, Sampling, WeightRef
from rljob_runtime.engines.torch import TorchEngine
from rljob_runtime.samples import Generation
from tests.support.runtime.engines import load, started, torch_engine
from tests.support.runtime.tiny_models import (
    PLAIN,
    VLLM_TOLERANCE,
    Family,
    check_kept_kv,
    check_log_probs,
    perturbed,
    published,
    request,
    tiny_model,
    weights_at,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLOTS, LENGTH = 8, 96


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("torch") / "model")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model: Path) -> AsyncIterator[TorchEngine]:
    async with started(torch_engine(model, slots=SLOTS, length=LENGTH)) as engine:
        yield engine


def same(left: Generation, right: Generation) -> bool:
    return np.array_equal(left.tokens, right.tokens) and np.array_equal(left.log_probs, right.log_probs)


def rest_of(asked: Request, name: str, got: Generation) -> Request:
    count = len(got.tokens)
    tokens = np.concatenate([asked.tokens, got.tokens])
    return Request(name, tokens, asked.max_tokens - count, asked.seed, count)


async def test_a_response_is_the_same_in_every_slot_and_beside_any_others(engine: TorchEngine) -> None:
    asked = request("alone", seed=7)
    alone = await engine.submit(asked)
    others = [
        engine.submit(request(f"other{i}", seed=i, length=3 + i, max_tokens=5 * i + 1)) for i in range(20)
    ]
    copies = [engine.submit(Request(f"copy{i}", asked.tokens, 50, 7)) for i in range(SLOTS * 2)]
    mixed = [call for pair in zip(copies, others, strict=False) for call in pair]
    for got in (await asyncio.gather(*mixed, *others[len(copies) :]))[0 : 2 * len(copies) : 2]:
        assert same(got, alone)


async def test_a_response_is_the_same_in_one_piece_or_continued_elsewhere(
    engine: TorchEngine, model: Path
) -> None:
    asked = request("whole", seed=3)
    whole = await engine.submit(asked)
    async with started(torch_engine(model, "elsewhere", slots=SLOTS + 3, length=LENGTH)) as elsewhere:
        for cut in (1, 17, 49):
            first = await engine.submit(Request(f"first{cut}", asked.tokens, cut, 3))
            more = rest_of(asked, f"more{cut}", first)
            second, third = await asyncio.gather(engine.submit(more), elsewhere.submit(more))
            assert np.array_equal(np.concatenate([first.tokens, second.tokens]), whole.tokens)
            assert np.array_equal(np.concatenate([first.log_probs, second.log_probs]), whole.log_probs)
            assert np.array_equal(third.tokens, second.tokens)
            np.testing.assert_allclose(third.log_probs, second.log_probs, atol=1e-5)


async def test_pausing_and_loading_the_same_weights_changes_nothing(engine: TorchEngine, model: Path) -> None:
    asked = [request(f"a{i}", seed=i) for i in range(SLOTS)]
    undisturbed = await asyncio.gather(*[engine.submit(one) for one in asked])
    tasks = [
        asyncio.create_task(engine.submit(Request(f"b{i}", a.tokens, 50, a.seed)))
        for i, a in enumerate(asked)
    ]
    for _ in range(3):
        await asyncio.sleep(0.01)
        await engine.pause("keep")
        await engine.load(weights_at(0, published(model)))
        await engine.resume()
    assert all(same(*pair) for pair in zip(await asyncio.gather(*tasks), undisturbed, strict=True))


@pytest.mark.parametrize("keeps", [False, True], ids=["recompute", "keep"])
async def test_the_kv_of_what_runs_when_weights_are_updated(model: Path, tmp_path: Path, keeps: bool) -> None:
    """Computed anew, or kept for what has tokens: not for one whose prompt is not computed yet."""
    folders = {0: model, 1: perturbed(model, tmp_path / "v1", 1)}
    asked = [request(f"kv{i}", seed=i, max_tokens=60) for i in range(3)]
    slow = request("slow", seed=8, length=50)
    async with started(torch_engine(model, slots=4, length=2 * LENGTH, keep_kv=keeps)) as engine:
        reports: asyncio.Queue[int] = asyncio.Queue()
        engine.on_progress(lambda counts, _: reports.put_nowait(sum(counts.values())), 0.001)
        tasks = [asyncio.create_task(engine.submit(one)) for one in [*asked, slow]]
        async with asyncio.timeout(60):
            while await reports.get() < 15:
                pass
        await engine.pause("keep")
        await engine.load(weights_at(1, folders[1]))
        # It begins when a slot is free, which holds what another response left there.
        last = request("last", seed=9)
        after = asyncio.create_task(engine.submit(last))
        await engine.resume()
        *results, begun = await asyncio.gather(*tasks)
        ran = list(zip(asked, results, strict=True))
        check_log_probs(model, {1: folders[1]}, [(slow, begun), (last, await after)])
    assert [[span.version for span in got.spans] for _, got in ran] == [[0, 1]] * 3
    anew = [got.timing.recomputed for _, got in ran if got.timing is not None]
    if keeps:
        assert anew == [0.0] * 3
        assert check_kept_kv(model, folders, ran, PLAIN) > 100 * VLLM_TOLERANCE
    else:
        assert min(anew) > 0.0
        check_log_probs(model, folders, ran)


async def test_seeds_decide(engine: TorchEngine) -> None:
    asked = request("x", seed=1)
    one, two = await asyncio.gather(*[engine.submit(Request(f"s{i}", asked.tokens, 50, i)) for i in range(2)])
    assert not np.array_equal(one.tokens, two.tokens)


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("tied", [False, True])
async def test_log_probabilities_agree_with_the_trainer_after_loads(
    tmp_path: Path, family: Family, tied: bool
) -> None:
    base = tiny_model(tmp_path / "model", family, tied)
    rules = Sampling(temperature=0.7, top_k=20, top_p=0.9)
    async with started(torch_engine(base, family, rules, slots=4)) as engine:
        for version in (1, 2):
            folder = perturbed(base, tmp_path / f"v{version}", version)
            await load(engine, version, folder)
            asked = [request(f"{version}-{i}", seed=i, max_tokens=40) for i in range(4)]
            results = await asyncio.gather(*map(engine.submit, asked))
            check_log_probs(base, {version: folder}, zip(asked, results, strict=True), rules, 1e-4)


async def test_a_stop_token_ends_a_response_and_is_part_of_it(model: Path) -> None:
    stops = tuple(range(0, 64, 2))
    async with started(torch_engine(model, "stops", Sampling(stop_token_ids=stops), slots=4)) as engine:
        for got in await asyncio.gather(*[engine.submit(request(f"s{i}", seed=i)) for i in range(12)]):
            assert got.finish == "stop"
            assert got.tokens[-1] % 2 == 0
            assert (got.tokens[:-1] % 2 == 1).all()


async def test_a_step_that_fails_ends_the_engine_with_the_reason(model: Path) -> None:
    engine = torch_engine(model, "fails", slots=2)
    await engine.start(0)
    outside = Request("outside", np.array([5, 1000], np.int32), 5, 0)
    good = asyncio.create_task(engine.submit(request("good")))
    with pytest.raises(EngineDied, match="engine fails: IndexError"):
        await engine.submit(outside)
    with pytest.raises(EngineDied, match="engine fails: IndexError"):
        await good
    with pytest.raises(EngineDied, match="IndexError"):
        await engine.pause("wait")
    await engine.close()


async def test_sequences_longer_than_the_model_takes_are_refused_at_start(model: Path) -> None:
    with pytest.raises(ValueError, match="sequences of 1000 tokens asked for, the model takes 512"):
        await torch_engine(model, "long", length=1000).start(0)


async def test_other_transports_are_refused(engine: TorchEngine) -> None:
    await engine.pause("keep")
    with pytest.raises(ValueError, match="takes weights by shm, not nccl"):
        await engine.load(WeightRef(1, "nccl", "host:1/2/1"))
    await engine.resume()
