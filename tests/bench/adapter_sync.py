"""Bringing a running vLLM engine to a new adapter, while 16 requests are in flight all the time.

The trainer trains an adapter on what the engine answers, and publishes it after each step; the engine takes
it as a new version. Measured: the three calls together (pause, load, resume), which stop nothing; the tokens
that were generated meanwhile; and how far the log-probabilities of each response are from those of the model
with the adapter of the response's version, as peft makes it. The baseline of the time, in the same run on
another engine: the same calls with all weights of the model.

    python -m tests.bench.adapter_sync
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from rljob_api.adapter import Adapter
from rljob_runtime.engines.protocol import Request
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.engines.vllm_adapter import AdapterEngine
from rljob_runtime.engines.vllm_shape import AdapterRoom
from rljob_runtime.samples import Generation, Group, Sample
from tests.bench.figures import Figure, parser, record
from tests.support.runtime.engines import started, vllm_engine
from tests.support.runtime.tiny_models import PLAIN, perturbed, request, tiny_model, vllm_device, weights_at
from tests.support.runtime.trainer_ranks import trainer_job, worker

ADAPTER: dict[str, Any] = {"rank": 8, "alpha": 16}
IN_FLIGHT, RESPONSE, VERSIONS = 16, 200, 20


class Streams:
    """Requests one after the other, `IN_FLIGHT` at a time, and what came of them."""

    def __init__(self, engine: VllmEngine) -> None:
        self.ended: list[tuple[Request, Generation]] = []
        self._engine = engine
        self._count = 0
        self._tasks = [asyncio.create_task(self._stream()) for _ in range(IN_FLIGHT)]

    async def _stream(self) -> None:
        while True:
            self._count += 1
            asked = request(f"r{self._count}", self._count % 8, max_tokens=RESPONSE, exact=True)
            self.ended.append((asked, await self._engine.submit(asked)))

    async def more(self, count: int) -> list[tuple[Request, Generation]]:
        """The next responses that end."""
        before = len(self.ended)
        async with asyncio.timeout(120):
            while len(self.ended) < before + count:  # noqa: ASYNC110 - a bench counts, and nothing tells it
                await asyncio.sleep(0.01)
        return self.ended[before : before + count]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def bring(engine: VllmEngine, version: int, folder: Path) -> tuple[float, int]:
    """Milliseconds of an update, and tokens that were generated meanwhile."""
    before, began = (await engine.load_snapshot()).generated_tokens, time.perf_counter()
    await engine.pause("keep")
    await engine.load(weights_at(version, folder))
    await engine.resume()
    took = 1e3 * (time.perf_counter() - began)
    return took, (await engine.load_snapshot()).generated_tokens - before


def groups(pairs: list[tuple[Request, Generation]], version: int) -> list[Group]:
    """Groups of four responses with random rewards."""
    rewards = np.random.default_rng(version).random(len(pairs))
    samples = [
        Sample(got.tokens, got.log_probs, got.spans, got.finish, float(reward), None)
        for (_, got), reward in zip(pairs, rewards, strict=True)
    ]
    return [
        Group(uid, 0, uid, pairs[4 * uid][0].tokens, tuple(samples[4 * uid : 4 * uid + 4]), 0)
        for uid in range(len(pairs) // 4)
    ]


@torch.inference_mode()
def gap(model: Any, asked: Request, got: Generation) -> float:
    tokens = torch.from_numpy(np.concatenate([asked.tokens, got.tokens]).astype(np.int64))
    start = len(asked.tokens)
    exact = model(tokens[None]).logits[0, start - 1 : -1].log_softmax(-1).gather(1, tokens[start:, None])
    return float(np.abs(exact[:, 0].numpy() - got.log_probs).max())


def furthest(base: Path, folders: dict[int, Path], pairs: list[tuple[Request, Generation]]) -> float:
    """The largest difference of a token's log-probability from that of peft's model, in nats."""
    worst = 0.0
    for version in sorted({got.spans[0].version for _, got in pairs}):
        model = AutoModelForCausalLM.from_pretrained(base)
        if version:
            model = PeftModel.from_pretrained(model, folders[version])
        of_it = [pair for pair in pairs if pair[1].spans[0].version == version]
        worst = max([worst, *(gap(model.eval(), *pair) for pair in of_it[:8])])
    return worst


async def with_adapters(base: Path) -> tuple[list[float], list[float], int, float]:
    """Milliseconds of each update and of each publishing, tokens during updates, the furthest token."""
    room = AdapterRoom(8, running=4, kept=16)
    made = AdapterEngine(Adapter(**ADAPTER), room, "adapted", base, PLAIN, IN_FLIGHT, 256, **vllm_device())
    job = trainer_job(
        adapter=ADAPTER,
        model={"headDim": 32},
        rollout={"engine": {"vllm": {}}, "maxResponseTokens": RESPONSE},
        optimizer={"learningRate": 1e-2},
        parallel={"maxTokensPerMicroBatch": 512},
    )
    updates, publishing, meanwhile, folders = [], [], 0, {}
    with worker(job, base, keep_versions=VERSIONS + 1) as trainer:
        async with started(made) as engine:
            streams = Streams(engine)
            for version in range(1, VERSIONS + 1):
                pairs = await streams.more(8)
                trainer.train_step(version, version - 1, groups(pairs, version))
                began = time.perf_counter()
                trainer.publish(version)
                folders[version] = Path(trainer.write_version().location)
                publishing.append(1e3 * (time.perf_counter() - began))
                took, tokens = await bring(engine, version, folders[version])
                updates.append(took)
                meanwhile += tokens
            await streams.more(2 * IN_FLIGHT)
            await streams.stop()
        worst = furthest(base, folders, streams.ended)
    return updates, publishing, meanwhile, worst


async def with_all_weights(base: Path, root: Path) -> list[float]:
    """Milliseconds of each update."""
    folders = [perturbed(base, root / f"v{version}", version) for version in range(1, VERSIONS + 1)]
    async with started(vllm_engine(base, "whole", slots=IN_FLIGHT, length=256)) as engine:
        streams = Streams(engine)
        found = []
        for version, folder in enumerate(folders, start=1):
            await streams.more(8)
            found.append((await bring(engine, version, folder))[0])
        await streams.stop()
    return found


async def main(out: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="adapter-bench-") as folder:
        base = tiny_model(Path(folder) / "model")
        updates, publishing, meanwhile, worst = await with_adapters(base)
        whole = await with_all_weights(base, Path(folder))
    record(
        "adapter_sync",
        [
            Figure(
                "engine update with an adapter of rank 8, median",
                statistics.median(updates),
                "ms",
                statistics.median(whole),
                "at most 20 ms",
            ),
            Figure("the same, slowest", max(updates), "ms", max(whole)),
            Figure("trainer publishes the adapter, median", statistics.median(publishing), "ms"),
            Figure(f"tokens generated during {VERSIONS} updates", meanwhile, "tokens"),
            Figure(
                "log-probability, engine against peft, furthest of all versions",
                worst,
                "nats",
                goal="at most 1e-5",
            ),
        ],
        out,
    )


if __name__ == "__main__":
    asyncio.run(main(parser(__doc__).parse_args().out))
