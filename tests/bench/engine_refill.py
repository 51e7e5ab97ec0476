"""A vLLM engine that is kept full: so many requests in flight all the time, each that ends replaced at once.

What new prompts cost it, and what `delayPrefills` makes of that. Responses have lengths as `peers/work` has
them (lognormal, median 220, 1,024 at most), prompts of 64 to 191 tokens come in groups of 8 alike; the first
responses are as far as they would be in an engine that has been full for ever. In one engine the gate is off
and on in turn, twice, told to the engine core at run time (`refill_clock`); the first fifth of each phase is
left out. Beside it stand the steps of as many requests that began at once, all of mean length, none replaced:
steps without any prompt.

`--sizes`: for each an engine of its own, which captures graphs up to so many tokens (usual: as without
`captureSizes`). An engine takes 75 s to start there; what is left of `--seconds` is shared by the engines.
`--spared`: what vLLM's scheduler is spared; all, as engines run (`engines/vllm_blocks`,
`engines/vllm_plain_tokens`, `engines/vllm_plain_steps`), blocks alone, or nothing.

    python -m tests.bench.engine_refill --device 0 --sizes usual 2048 --out FOLDER &
    python -m tests.bench.engine_refill --device 1 --sizes 1024 --out FOLDER; wait
                                              on two GPUs: Qwen3-0.6B's shape, 512 and 64 in flight; 300 s
    python -m tests.bench.engine_refill --tiny --out FOLDER            on a CPU, to see it run
"""

import asyncio
import logging
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines import vllm_compat
from rljob_runtime.engines.protocol import Request, Sampling
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.fleet.reporting import report_seconds
from rljob_runtime.routing.gears import sizes_up_to
from tests.bench import refill_clock
from tests.bench.engine_refill_rows import Phase, phase, rows
from tests.bench.engine_step import write_model
from tests.bench.figures import Figure, parser, record
from tests.bench.peers.work import LARGE, SAMPLES, SMALL, Work
from tests.bench.refill_clock import Taken

PHASES = (False, True, False, True)
"""Of the gate."""
UNSETTLED = 0.2
"""Part of a phase that is left out at its beginning."""
BARE_SECONDS = 60.0
"""Longest that requests take that began at once."""


def residual(lengths: NDArray[np.int64], count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """What the requests of an engine that has been full for ever have still to generate, of `count` of them:
    the longer a response, the more likely it is met, and it is met anywhere."""
    met = random.choice(lengths, count, p=lengths / lengths.sum())
    left: NDArray[np.int64] = np.maximum(1, np.ceil(met * random.random(count))).astype(np.int64)
    return left


class Full:
    """Requests that are in flight in an engine."""

    def __init__(self, engine: VllmEngine, work: Work, vocabulary: int) -> None:
        self._engine, self._work, self._vocabulary = engine, work, vocabulary
        self._lengths = work.lengths().reshape(-1)
        self._asked = 0
        self._stopping = False

    async def run(self, in_flight: int) -> None:
        """Until `stop`."""
        self._stopping = False
        left = residual(self._lengths, in_flight, np.random.default_rng(5))
        await asyncio.gather(*(self._place(int(each)) for each in left))

    async def stop(self) -> None:
        self._stopping = True
        await self._engine.pause("abort")
        await self._engine.resume()

    async def alike(self, count: int) -> None:
        """So many at once, all of mean length, until they have ended."""
        mean = int(self._lengths.mean())
        await asyncio.gather(*(self._generate(mean) for _ in range(count)))

    async def _place(self, tokens: int) -> None:
        await self._generate(tokens)
        while not self._stopping:
            await self._generate(int(self._lengths[self._asked % len(self._lengths)]))

    async def _generate(self, tokens: int) -> None:
        number, self._asked = self._asked, self._asked + 1
        random = np.random.default_rng([7, number // SAMPLES])
        prompt = random.integers(0, self._vocabulary, random.integers(*self._work.prompt_tokens))
        got = await self._engine.submit(
            Request(f"r{number}", prompt.astype(np.int32), tokens, number, exact=True)
        )
        if len(got.tokens) != tokens and not self._stopping:
            raise RuntimeError(f"{len(got.tokens)} tokens came of a response of {tokens}")


@dataclass(frozen=True)
class Site:
    """What the engines have in common."""

    folder: Path
    vocabulary: int
    tiny: bool
    in_flight: tuple[int, ...]

    @property
    def work(self) -> Work:
        return SMALL if self.tiny else LARGE

    def engine(self, size: str) -> VllmEngine:
        sizes = None if size == "usual" else list(sizes_up_to(int(size)))
        most = self.work.longest + self.work.prompt_tokens[1]
        return VllmEngine(
            size, self.folder, Sampling(), max(self.in_flight), most, "float32" if self.tiny else "bfloat16",
            VllmOptions(capture_sizes=sizes, delay_prefills=True), "cpu" if self.tiny else "nvidia",
        )  # fmt: skip


class Clocked:
    """An engine whose core tells what its steps are like."""

    def __init__(self, engine: VllmEngine) -> None:
        self._client = engine._live_core()._client

    async def gate(self, on: bool) -> None:
        await self._client.call_utility_async(refill_clock.GATE, on)

    async def take(self) -> Taken:
        return refill_clock.taken(await self._client.call_utility_async(refill_clock.TAKE))

    async def phase(self, on: bool, seconds: float) -> Phase:
        await self.gate(on)
        await self.take()
        since = time.monotonic() + UNSETTLED * seconds
        await asyncio.sleep(seconds)
        taken = await self.take()
        if taken.costs is not None:
            pure, extra = (1e3 * each for each in taken.costs)
            print(f"gate {on}: a step takes {pure:.2f} ms, prompts {extra:.2f} ms more", flush=True)
        return phase(taken, since)


async def refilled(clocked: Clocked, full: Full, in_flight: int, title: str, seconds: float) -> list[Figure]:
    """So many in flight, for about so many seconds."""
    began = time.monotonic()
    await clocked.take()
    # With the gate off: nothing is to wait of what begins at once.
    await clocked.gate(False)
    async with asyncio.timeout(BARE_SECONDS):
        await full.alike(in_flight)
    bare = phase(await clocked.take(), began, full=in_flight)
    each = max(0.5, (seconds - (time.monotonic() - began)) / (len(PHASES) + UNSETTLED))
    running = asyncio.create_task(full.run(in_flight))
    await asyncio.sleep(UNSETTLED * each)
    found: dict[bool, list[Phase]] = {True: [], False: []}
    try:
        for on in PHASES:
            found[on].append(await clocked.phase(on, each))
    finally:
        await full.stop()
        await running
    return rows(title, bare, found[False], found[True])


async def measure(site: Site, size: str, named: str, until: float, engines: int) -> list[Figure]:
    """One engine, which is the first of so many that share the time until then."""
    began, figures = time.monotonic(), []
    engine = site.engine(size)
    try:
        await engine.start(0)
        took = time.monotonic() - began
        config = engine._live_core()._llm.vllm_config
        largest = max(config.compilation_config.cudagraph_capture_sizes or [0])
        print(f"engine {size} started in {took:.0f} s, largest graph {largest} tokens", flush=True)
        engine.on_progress(lambda _, __: None, report_seconds(1))
        clocked, full = Clocked(engine), Full(engine, site.work, site.vocabulary)
        # The others take as long to start.
        seconds = (until - time.monotonic() - took * (engines - 1)) / engines / len(site.in_flight)
        for in_flight in site.in_flight:
            title = f"{named}graphs {size}, {in_flight} in flight"
            figures += await refilled(clocked, full, in_flight, title, seconds)
    finally:
        await engine.close()
    return figures


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--tiny", action="store_true", help="a model of two layers, on the CPU")
    line.add_argument("--sizes", nargs="+", default=["usual"], help="usual, or the most tokens of a graph")
    line.add_argument("--in-flight", nargs="+", type=int, help="default: 512 and 64; with --tiny 8 and 4")
    line.add_argument("--seconds", type=float, default=280.0, help="for all, starts included")
    line.add_argument("--spared", choices=refill_clock.SPARED, default="all", help="vLLM's scheduler")
    line.add_argument("--device", type=int, help="the GPU; default: the first")
    options = line.parse_args()
    if wrong := [size for size in options.sizes if size != "usual" and not size.isdecimal()]:
        line.error(f"--sizes: {', '.join(wrong)}: allowed are usual and numbers of tokens")
    if options.device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(options.device)
    until = time.monotonic() + options.seconds
    # Why prompts do not wait in a version of vLLM is in its log.
    logging.basicConfig()
    in_flight = tuple(options.in_flight or ((8, 4) if options.tiny else (512, 64)))
    figures: list[Figure] = []
    factory = refill_clock.factory(options.spared)
    named, of = ("", "") if options.spared == "all" else (f"spared {options.spared}, ", f"_{options.spared}")
    with (
        tempfile.TemporaryDirectory() as scratch,
        patch.object(vllm_compat, "DELAYING", factory),
    ):
        vocabulary = write_model(Path(scratch), options.tiny)
        site = Site(Path(scratch), vocabulary, options.tiny, in_flight)
        for place, size in enumerate(options.sizes):
            if time.monotonic() > until:
                print(f"time is spent: nothing of {size}", flush=True)
                break
            figures += asyncio.run(measure(site, size, named, until, len(options.sizes) - place))
            sizes = "" if options.tiny else f"_cuda_{'_'.join(options.sizes)}"
            name = f"engine_refill{sizes}{of}"
            record(name, figures, options.out)


if __name__ == "__main__":
    main()
