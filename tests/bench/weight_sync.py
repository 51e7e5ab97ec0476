"""Bringing a running vLLM engine to new weights: pause, load from shared memory, resume.

32 requests are in flight all the time. Measured: the three calls together (the time in which the engine
generates nothing), and the gap until every request in flight has on average one more token, KV cache
recomputed. The baseline, in the same run on the same engine: abort everything, load, resume, and submit the
rest of each response again. Every token of every response is compared with a plain Hugging Face model
that has the weights of the token's label.

On a machine with NVIDIA GPUs the engine has one of them, and the file is weight_sync_cuda.json.

    python -m tests.bench.weight_sync
"""

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rljob_runtime.engines.protocol import PauseMode, Request
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.samples import Generation, join_spans
from tests.bench.figures import Figure, parser, record
from tests.support.runtime.engines import vllm_engine
from tests.support.runtime.tiny_models import Reference, perturbed, request, tiny_model, weights_at

IN_FLIGHT, RESPONSE, SYNCS = 32, 240, 40


@dataclass
class Sync:
    """Milliseconds of one update."""

    pause: float
    load: float
    resume: float
    gap: float

    @property
    def total(self) -> float:
        return self.pause + self.load + self.resume


@dataclass
class Bench:
    """The engine, its streams of requests, and what came back."""

    engine: VllmEngine
    base: Path
    folders: dict[int, Path] = field(default_factory=dict)
    asked: list[Request] = field(default_factory=list)
    ended: list[tuple[Request, Generation]] = field(default_factory=list)
    stopping: bool = False

    async def stream(self) -> None:
        """One request after the other; an aborted one is submitted again with what it has."""
        while not self.stopping:
            first = request(f"r{len(self.asked)}", len(self.asked), max_tokens=RESPONSE)
            self.asked.append(first)
            self.ended.append((first, await self._respond(first)))

    async def _respond(self, first: Request) -> Generation:
        got = await self.engine.submit(first)
        while got.finish == "abort":
            count = len(got.tokens)
            tokens = np.concatenate([first.tokens, got.tokens])
            name = f"{first.request_id}-{count}-{time.monotonic_ns()}"
            more = await self.engine.submit(Request(name, tokens, RESPONSE - count, first.seed, count))
            got = Generation(
                first.request_id,
                np.concatenate([got.tokens, more.tokens]),
                np.concatenate([got.log_probs, more.log_probs]),
                join_spans(got.spans, more.spans),
                more.finish,
            )
        return got

    async def generated(self, tokens: int) -> None:
        """Wait until `tokens` more were generated."""
        goal = (await self.engine.load_snapshot()).generated_tokens + tokens
        async with asyncio.timeout(60):
            while (await self.engine.load_snapshot()).generated_tokens < goal:  # noqa: ASYNC110 - asked
                await asyncio.sleep(0.001)

    async def sync(self, version: int, mode: PauseMode) -> Sync:
        self.folders[version] = perturbed(self.base, self.base.parent / f"v{version}", version)
        await self.generated(IN_FLIGHT * 8)
        began = time.perf_counter()
        pause = await timed(self.engine.pause(mode))
        load = await timed(self.engine.load(weights_at(version, self.folders[version])))
        resume = await timed(self.engine.resume())
        await self.generated(IN_FLIGHT)
        return Sync(pause, load, resume, 1e3 * (time.perf_counter() - began))

    def worst(self) -> float:
        """The largest difference in log-probability between engine and trainer, over all tokens."""
        reference, worst = Reference(self.base), 0.0
        for version, folder in self.folders.items():
            reference.use(folder)
            for asked, got in self.ended:
                spans = [span for span in got.spans if span.version == version]
                if not spans:
                    continue
                apart = np.abs(got.log_probs - reference.log_probs(asked, got))
                worst = max(worst, *(float(apart[span.start : span.end].max()) for span in spans))
        return worst

    def lost(self) -> int:
        """Requests that did not end once with the whole response."""
        whole = {asked.request_id for asked, got in self.ended if len(got.tokens) == RESPONSE}
        return len(self.asked) - len(whole)


async def timed(call: Coroutine[Any, Any, None]) -> float:
    """Milliseconds that `call` takes."""
    began = time.perf_counter()
    await call
    return 1e3 * (time.perf_counter() - began)


async def measure(root: Path, out: Path) -> None:
    base = tiny_model(root / "model")
    bench = Bench(vllm_engine(base, "bench", slots=IN_FLIGHT, length=256), base, {0: base})
    await bench.engine.start(0)
    streams = [asyncio.create_task(bench.stream()) for _ in range(IN_FLIGHT)]
    results: dict[PauseMode, list[Sync]] = {"keep": [], "abort": []}
    for number in range(2 * SYNCS):
        mode: PauseMode = "keep" if number % 2 else "abort"
        results[mode].append(await bench.sync(number + 1, mode))
    bench.stopping = True
    await asyncio.gather(*streams)
    await bench.engine.close()
    report(bench, results["keep"], results["abort"], out)


def report(bench: Bench, keep: list[Sync], abort: list[Sync], out: Path) -> None:
    def both(name: str, pick: Any, summary: Any, goal: str | None = None) -> Figure:
        ours, theirs = (summary([pick(sync) for sync in syncs]) for syncs in (keep, abort))
        return Figure(name, round(ours, 2), "ms", round(theirs, 2), goal)

    def p95(values: list[float]) -> float:
        return float(np.percentile(values, 95))

    median = statistics.median
    record(
        "weight_sync_cuda" if torch.cuda.is_available() else "weight_sync",
        [
            both("pause, load, resume: median", lambda s: s.total, median, "below 100 ms"),
            both("pause, load, resume: p95", lambda s: s.total, p95),
            both("pause: median", lambda s: s.pause, median),
            both("load: median", lambda s: s.load, median),
            both("resume: median", lambda s: s.resume, median),
            both("gap until a token per request: median", lambda s: s.gap, median),
            both("gap until a token per request: p95", lambda s: s.gap, p95),
            Figure("weight updates", len(keep), "updates", len(abort)),
            Figure("requests", len(bench.asked), "requests"),
            Figure("requests lost", bench.lost(), "requests", goal="0"),
            Figure("largest difference of log-probabilities", bench.worst(), "nats", goal="below 1e-4"),
        ],
        out,
    )


def main() -> None:
    out = parser(__doc__).parse_args().out
    root = Path(tempfile.mkdtemp(prefix="rljob-bench-", dir="/dev/shm"))
    try:
        asyncio.run(measure(root, out))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
