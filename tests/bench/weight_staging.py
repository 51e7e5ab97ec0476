"""What an update of a vLLM engine's weights costs it: versions that arrive while it generates, beside
versions that arrive in its pause, on the same engine, in turn.

The model has the shape of Qwen3-0.6B and random weights in bfloat16 (1.2 GB); 64 and 512 requests are in
flight all the time. Stall: pause, load and resume together; in the pause the step under way ends. The engine
has the first GPU, and the second one where weights also come over NCCL, from a sender in a process of its own
on the first. The baseline of sending is `torch.distributed.broadcast` of the same bytes between the same two
GPUs. Sending is timed from the sender's call on, when the engine has yet to begin to receive, and by itself
from when the first bucket has been sent, beside the part of the raw broadcast that is as many bytes. The
baseline of what comes through shared memory is reading the same folder to the GPU by safetensors.
Log-probabilities of responses after updates are compared with those of the model in transformers.

    python -m tests.bench.weight_staging [--transports shm nccl] [--one-step] [--out FOLDER]
    python -m tests.bench.weight_staging --tiny --transports shm gloo --out FOLDER    (on CPUs, to see it run)
"""

import argparse
import asyncio
import logging
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines import vllm_compat
from rljob_runtime.engines.protocol import Request, Sampling, WeightRef
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.engines.vllm_shape import VllmShape, arguments
from rljob_runtime.samples import Generation
from tests.bench.figures import RESULTS, Figure, record
from tests.bench.peers.work import LARGE, SMALL, Work
from tests.bench.raw_broadcast import milliseconds
from tests.bench.weight_sender import Sender
from tests.bench.weight_staging_rows import Update, report, sending
from tests.support.runtime.plain_linear import plain_linear
from tests.support.runtime.tiny_models import published

PROMPT = 128
SETTLE_SECONDS = 0.5
"""Between two updates at least, in which the engine computes the KV cache anew and goes on."""

COMPARED = 24
"""Responses of each kind of update, of which log-probabilities are compared."""


@dataclass(frozen=True)
class Scale:
    """How much of it there is."""

    work: Work
    dtype: str
    in_flight: Sequence[int]
    updates: int
    """Of each kind, at each number of requests."""
    response: int


FULL = Scale(LARGE, "bfloat16", (64, 512), 4, 192)
TINY = Scale(SMALL, "float32", (4, 8), 3, 64)


@dataclass
class Streams:
    """Requests one after the other, so many at a time, and what came of them."""

    engine: VllmEngine
    vocabulary: int
    response: int
    ended: list[tuple[Request, Generation]] = field(default_factory=list)
    count: int = 0
    stopping: bool = False

    async def run(self, in_flight: int) -> None:
        await asyncio.gather(*(self._stream(index) for index in range(in_flight)))

    async def _stream(self, index: int) -> None:
        while not self.stopping:
            self.count += 1
            tokens = np.random.default_rng([self.count]).integers(0, self.vocabulary, PROMPT)
            # The first ones end at different times, so that later ones begin at different times.
            most = self.response if self.ended else max(16, index * 37 % self.response)
            asked = Request(f"s{self.count}", tokens.astype(np.int32), most, self.count, exact=True)
            self.ended.append((asked, await self.engine.submit(asked)))

    async def tokens(self) -> int:
        return (await self.engine.load_snapshot()).generated_tokens

    async def more(self, count: int) -> None:
        """Wait until so many more tokens were generated."""
        goal = await self.tokens() + count
        async with asyncio.timeout(60):
            while await self.tokens() < goal:  # noqa: ASYNC110 - progress is told when asked
                await asyncio.sleep(0.001)


class Bench:
    """One engine, and the versions that it is brought to."""

    def __init__(self, engine: VllmEngine, folders: Sequence[Path]) -> None:
        self.engine = engine
        self.sender: Sender | None = None
        """What versions come from now; None: from folders."""
        self.warm: set[str] = set()
        """Transports by which it has had versions."""
        self.version = 0
        self.folders: dict[int, Path] = {0: folders[0]}
        self._folders = folders

    async def update(self, streams: Streams, staged: bool, in_flight: int) -> Update:
        self.version += 1
        folder = self.folders[self.version] = self._folders[self.version % 2]
        await streams.more(in_flight * 4)
        before, began = await streams.tokens(), time.perf_counter()
        await asyncio.sleep(SETTLE_SECONDS)
        middle, at = await streams.tokens(), time.perf_counter()
        usual = (middle - before) / (at - began)
        ref, sending = self._ref(folder, staged)
        prepare = await timed(self._while_sent(self.engine.prepare(ref), sending)) if staged else 0.0
        pace = (await streams.tokens() - middle) / (time.perf_counter() - at) / usual if staged else np.nan
        there, began = await streams.tokens(), time.perf_counter()
        pause = await timed(self.engine.pause("keep"))
        made = await streams.tokens() - there
        load = self.engine.load(ref)
        loaded = await timed(load if staged else self._while_sent(load, sending))
        resume = await timed(self.engine.resume())
        await streams.more(in_flight)
        gap = 1e3 * (time.perf_counter() - began)
        assert self.engine.version == self.version
        return Update(prepare, pause, loaded, resume, gap, pace, made)

    async def transfer(self, updates: int) -> list[Update]:
        """Versions that arrive in an engine that has nothing to do."""
        found = []
        for _ in range(updates):
            self.version += 1
            folder = self.folders[self.version] = self._folders[self.version % 2]
            ref, sending = self._ref(folder, True)
            prepare = await timed(self._while_sent(self.engine.prepare(ref), sending))
            pause = await timed(self.engine.pause("keep"))
            load = await timed(self.engine.load(ref))
            found.append(Update(prepare, pause, load, await timed(self.engine.resume()), *[np.nan] * 3))
        return found

    def _ref(self, folder: Path, staged: bool) -> tuple[WeightRef, bool]:
        if self.sender is None:
            return WeightRef(self.version, "shm", str(folder)), False
        location = self.sender.location(staged)
        return WeightRef(self.version, "nccl", location, staged), True

    async def _while_sent(self, taking: Awaitable[None], sending: bool) -> None:
        if not sending or self.sender is None:
            await taking
            return
        await asyncio.gather(taking, self.sender.send(self.version % 2))


async def timed(call: Awaitable[None]) -> float:
    """Milliseconds that `call` takes."""
    began = time.perf_counter()
    await call
    return 1e3 * (time.perf_counter() - began)


def make_model(scale: Scale, folder: Path) -> list[Path]:
    """The model, and a second version of it."""
    config = transformers.AutoConfig.for_model(
        "qwen3", vocab_size=scale.work.vocabulary, tie_word_embeddings=True, max_position_embeddings=2048,
        **scale.work.shape,
    )  # fmt: skip
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, scale.dtype))
    folders = [published(folder / "model"), published(folder / "other")]
    model.save_pretrained(folders[0])
    weights = load_file(folders[0] / "model.safetensors", device=device)
    moved = {name: value + 0.005 * torch.randn_like(value) for name, value in weights.items()}
    save_file({name: value.cpu() for name, value in moved.items()}, folders[1] / "model.safetensors")
    shutil.copy(folders[0] / "config.json", folders[1])
    del model, weights, moved
    if device == "cuda":
        torch.cuda.empty_cache()
    return folders


@torch.inference_mode()
def apart(bench: Bench, ended: Sequence[tuple[Request, Generation]], versions: set[int]) -> float:
    """Mean difference of log-probabilities between engine and model, of tokens of these versions: those of
    the newest `COMPARED` responses that have some."""
    device, found = "cuda" if torch.cuda.is_available() else "cpu", []
    of_them = [each for each in ended if any(span.version in versions for span in each[1].spans)]
    for folder in {bench.folders[version] for version in versions}:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto").to(device).eval()
        for asked, got in of_them[-COMPARED:]:
            spans = [s for s in got.spans if s.version in versions and bench.folders[s.version] == folder]
            if not spans:
                continue
            tokens = torch.from_numpy(np.concatenate([asked.tokens, got.tokens]).astype(np.int64)).to(device)
            logits = model(tokens[None]).logits[0, len(asked.tokens) - 1 : -1].float().log_softmax(-1)
            right = logits.gather(1, tokens[len(asked.tokens) :, None])[:, 0].cpu().numpy()
            found += [np.abs(got.log_probs - right)[span.start : span.end] for span in spans]
    distance = float(np.concatenate(found).mean())
    if not np.isfinite(distance):
        raise SystemExit(f"the engine has a log-probability that is no number, of versions {versions}")
    return distance


Save = Callable[[Sequence[Figure]], None]
"""Keeps figures that there are before the end."""


async def measure(scale: Scale, folder: Path, transports: Sequence[str], save: Save) -> list[Figure]:
    folders = make_model(scale, folder)
    size = (folders[0] / "model.safetensors").stat().st_size
    figures = [Figure("weights", round(size / 1e9, 3), "GB")]
    senders = {name: None if name == "shm" else Sender(name, folders) for name in transports}
    try:
        arrived, rest = await with_engine(scale, folders, senders, save)
        figures += rest
        for transport, seconds in arrived.items():
            sender, raw = senders[transport], None
            if sender is not None:
                sender.close()
                raw = await asyncio.to_thread(broadcast, size, transport)
                figures += sending(transport, sender.newest(scale.updates), raw)
            elif torch.cuda.is_available():
                raw = statistics.median([await timed(read(folders[0])) for _ in range(5)])
            name = f"{transport}: a version for an engine that has nothing to do: median"
            figures.append(Figure(name, seconds, "ms", raw))
    finally:
        for sender in filter(None, senders.values()):
            sender.close()
    return figures


def broadcast(size: int, backend: str) -> float | None:
    """Milliseconds of a broadcast of so many bytes; None where there was none in time, which is told."""
    try:
        return milliseconds(size, backend)
    except subprocess.SubprocessError as error:
        print(f"no baseline: {error}", flush=True)
        return None


async def read(folder: Path) -> None:
    load_file(folder / "model.safetensors", device="cuda")
    torch.cuda.synchronize()


async def with_engine(
    scale: Scale, folders: Sequence[Path], senders: Mapping[str, Sender | None], save: Save
) -> tuple[dict[str, float], list[Figure]]:
    """Milliseconds of a version for an idle engine, by transport; what else there is to tell."""
    cuda, most = torch.cuda.is_available(), max(scale.in_flight)
    options: Mapping[str, Any] = (
        {"accelerator": "nvidia", "options": VllmOptions(gpu_memory_utilization=0.5)} if cuda else {}
    )
    length = PROMPT + scale.response
    engine = VllmEngine("bench", folders[0], Sampling(), most, length, dtype=scale.dtype, **options)
    began = time.perf_counter()
    with visible("1" if "nccl" in senders else None):
        await engine.start(0)
    print(f"engine up after {time.perf_counter() - began:.0f} s; it stages: {engine.stages}", flush=True)
    if not engine.stages:
        raise SystemExit("the engine takes no version while it generates: its log says why")
    bench, figures, arrived = Bench(engine, folders), [], {}
    try:
        for in_flight in scale.in_flight:
            for transport, bench.sender in senders.items():
                figures += await with_requests(scale, bench, in_flight, transport)
                save(figures)
        for transport, bench.sender in senders.items():
            idle = await bench.transfer(scale.updates)
            arrived[transport] = statistics.median(one.prepare for one in idle)
    finally:
        await engine.close()
    return arrived, figures


@contextmanager
def one_step_at_a_time() -> Iterator[None]:
    """Engines that are made in the body schedule a step once the one before has ended."""

    def changed(shape: VllmShape) -> dict[str, Any]:
        return {**arguments(shape), "async_scheduling": False}

    with patch.object(vllm_compat, "arguments", changed):
        yield


@contextmanager
def visible(devices: str | None) -> Iterator[None]:
    """Which GPUs processes see that are started in the body; None: all."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    yield
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if before is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = before


async def with_requests(scale: Scale, bench: Bench, in_flight: int, transport: str) -> list[Figure]:
    streams = Streams(bench.engine, scale.work.vocabulary, scale.response)
    running = asyncio.create_task(streams.run(in_flight))
    # Over gloo there is no other way than the staged one.
    kinds = [True] if bench.sender is not None and not bench.sender.both else [True, False]
    found: dict[bool, list[Update]] = {kind: [] for kind in kinds}
    versions: dict[bool, set[int]] = {kind: set() for kind in kinds}
    for kind in kinds if transport not in bench.warm else ():  # joins a group, and warms up
        await bench.update(streams, kind, in_flight)
    bench.warm.add(transport)
    for _ in range(scale.updates):
        for kind in kinds:
            found[kind].append(await bench.update(streams, kind, in_flight))
            versions[kind].add(bench.version)
            print(f"{transport}, {in_flight} requests, staged: {kind}: {found[kind][-1]}", flush=True)
    streams.stopping = True
    await running
    lost = streams.count - sum(len(got.tokens) == asked.max_tokens for asked, got in streams.ended)
    distance = {kind: apart(bench, streams.ended, versions[kind]) for kind in kinds}
    return report(f"{transport}, {in_flight} requests", found, distance, lost)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transports", nargs="+", choices=["shm", "nccl", "gloo"], default=["shm"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument(
        "--in-flight", nargs="+", type=int, help="requests at a time; default: 64 and 512, on CPUs 4 and 8"
    )
    parser.add_argument(
        "--one-step", action="store_true", help="vLLM prepares no step while another runs (async_scheduling)"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    # Why an engine takes no version while it generates is in its log.
    logging.basicConfig()
    logging.getLogger("rljob_runtime").setLevel(logging.INFO)
    root = Path(tempfile.mkdtemp(prefix="rljob-bench-", dir="/dev/shm"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root)
        if not torch.cuda.is_available():
            stack.enter_context(plain_linear(root / "plugin"))
        if options.one_step:
            stack.enter_context(one_step_at_a_time())
        scale = TINY if options.tiny else FULL
        scale = replace(scale, in_flight=options.in_flight or scale.in_flight)
        figures = asyncio.run(measure(scale, root, options.transports, partial(kept, options)))
    kept(options, figures, show=True)


def kept(options: argparse.Namespace, figures: Sequence[Figure], show: bool = False) -> None:
    """Write figures to the results."""
    said = "one step at a time, " if options.one_step else ""
    named = [replace(each, name=f"{said}{each.name}") for each in figures]
    record("weight_staging", named, options.out or RESULTS, show=show)


if __name__ == "__main__":
    main()
