"""What an update of a vLLM engine's weights costs it: versions that arrive while it generates, beside
versions that arrive in its pause, on the same engine, in turn (`--kinds staged loaded`); and versions that
are put in between two of its steps, beside those that are put in in its pause (`--kinds swapped staged`).

The model has the shape of Qwen3-0.6B and random weights in bfloat16 (1.2 GB); 64 and 512 requests are in
flight all the time. Stall: pause, load and resume together; in the pause the step under way ends. Where
versions are put in between two steps the steps under way go on, and stall is the longest time in which no
step is under way, by the core's own clock (`step_clock`), for both kinds. The copy itself, for which the
first step after it waits on the accelerator, is in the longest time without a token. The time from the call
until the core goes on with the version is told too, which is pause, load and resume of the other kind.

The engine has the first GPU, and the second one where weights also come over NCCL, from a sender in a process
of its own on the first. The baseline of sending is `torch.distributed.broadcast` of the same bytes between
the same two GPUs. Sending is timed from the sender's call on, when the engine has yet to begin to receive,
and by itself from when the first bucket has been sent, beside the part of the raw broadcast that is as many
bytes. The baseline of what comes through shared memory is reading the same folder to the GPU by safetensors.
Log-probabilities of responses after updates are compared with those of the model in transformers, where the
KV cache is computed anew.

    python -m tests.bench.weight_staging [--transports shm nccl] [--kinds swapped staged] [--keep-kv]
        [--in-flight 512 64] [--updates 5] [--one-step] [--out FOLDER]
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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines import vllm_compat, vllm_configured
from rljob_runtime.engines.protocol import Request, Sampling, WeightRef
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.engines.vllm_shape import arguments
from rljob_runtime.engines.vllm_staging_verbs import PutIn
from rljob_runtime.samples import Generation
from tests.bench import step_clock
from tests.bench.figures import RESULTS, Figure, record
from tests.bench.raw_broadcast import milliseconds
from tests.bench.weight_sender import Sender
from tests.bench.weight_staging_model import FULL, TINY, Scale, make_model
from tests.bench.weight_staging_rows import KINDS, Kind, Update, report, sending
from tests.bench.weight_staging_streams import PROMPT, Streams, timed
from tests.support.runtime.plain_linear import plain_linear

SETTLE_SECONDS = 0.5
"""Between two updates at least, in which the engine computes the KV cache anew and goes on."""

COMPARED = 24
"""Responses of each kind of update, of which log-probabilities are compared."""


class Bench:
    """One engine, and the versions that it is brought to."""

    def __init__(self, engine: VllmEngine, folders: Sequence[Path]) -> None:
        self.engine = engine
        self.sender: Sender | None = None
        """What versions come from now; None: from folders."""
        self.warm: set[str] = set()
        """Transports by which it has had versions."""
        self.version = 0
        self.clocked = False
        """Whether its core tells when steps begin and end."""
        self.folders: dict[int, Path] = {0: folders[0]}
        self._folders = folders

    async def update(self, streams: Streams, kind: Kind, in_flight: int) -> Update:
        staged = kind != "loaded"
        self.version += 1
        folder = self.folders[self.version] = self._folders[self.version % 2]
        await streams.more(in_flight * 4)
        if self.clocked:
            await self._steps()
        before, began = await streams.tokens(), time.perf_counter()
        await asyncio.sleep(SETTLE_SECONDS)
        middle, at = await streams.tokens(), time.perf_counter()
        usual = (middle - before) / (at - began)
        ref, sending = self._ref(folder, staged)
        prepare = await timed(self._while_sent(self.engine.prepare(ref), sending)) if staged else 0.0
        pace = (await streams.tokens() - middle) / (time.perf_counter() - at) / usual if staged else np.nan
        there, began = await streams.tokens(), time.monotonic()
        if kind == "swapped":
            goes_on, pause, loaded, resume = await self._swap(ref), 0.0, 0.0, 0.0
            made = await streams.tokens() - there
        else:
            pause, goes_on = await timed(self.engine.pause("keep")), None
            made = await streams.tokens() - there
            load = self.engine.load(ref)
            loaded = await timed(load if staged else self._while_sent(load, sending))
            resume = await timed(self.engine.resume())
        await streams.more(in_flight)
        gap = 1e3 * (time.monotonic() - began)
        assert self.engine.version == self.version
        flow = step_clock.flow(await self._steps(), began) if self.clocked else None
        return Update(prepare, pause, loaded, resume, gap, pace, made, goes_on, flow)

    async def _swap(self, ref: WeightRef) -> float:
        """Milliseconds until the engine's core goes on with the version."""
        core, told = self.engine._live_core(), []
        put_in = core.put_in

        async def noted(number: int, keep_kv: bool) -> PutIn:
            told.append(await put_in(number, keep_kv))
            return told[0]

        began = time.monotonic()
        with patch.object(core, "put_in", noted):
            assert await self.engine.swap(ref), "the engine put nothing in"
        return 1e3 * (told[0].stood[1] - began)

    async def _steps(self) -> list[step_clock.Step]:
        """Of the engine since the last call."""
        found: list[step_clock.Step] = await self.engine._live_core()._client.call_utility_async(
            step_clock.TAKE
        )
        return found

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
            found.append(
                Update(prepare, pause, load, await timed(self.engine.resume()), np.nan, np.nan, np.nan)
            )
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
    engine = VllmEngine(
        "bench", folders[0], Sampling(), most, length, dtype=scale.dtype, keep_kv=scale.keep_kv, **options
    )
    began = time.perf_counter()
    with visible("1" if "nccl" in senders else None):
        await engine.start(0)
    print(f"engine up after {time.perf_counter() - began:.0f} s; it stages: {engine.stages}", flush=True)
    if not engine.stages:
        raise SystemExit("the engine takes no version while it generates: its log says why")
    if "swapped" in scale.kinds and (obstacle := engine._live_core().swap_obstacle):
        raise SystemExit(f"the engine puts in no version between two steps: {obstacle}")
    bench, figures, arrived = Bench(engine, folders), [], {}
    bench.clocked = "swapped" in scale.kinds
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

    def changed(*given: Any) -> dict[str, Any]:
        return {**arguments(*given), "async_scheduling": False}

    with patch.object(vllm_configured, "arguments", changed):
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
    # Over gloo there is no other way than arriving while it generates.
    both = bench.sender is None or bench.sender.both
    kinds = [kind for kind in scale.kinds if both or kind != "loaded"]
    found: dict[Kind, list[Update]] = {kind: [] for kind in kinds}
    versions: dict[Kind, set[int]] = {kind: set() for kind in kinds}
    for kind in kinds if transport not in bench.warm else ():  # joins a group, and warms up
        await bench.update(streams, kind, in_flight)
    bench.warm.add(transport)
    for _ in range(scale.updates):
        for kind in kinds:
            found[kind].append(await bench.update(streams, kind, in_flight))
            versions[kind].add(bench.version)
            print(f"{transport}, {in_flight} requests, {kind}: {found[kind][-1]}", flush=True)
    streams.stopping = True
    await running
    lost = streams.count - sum(len(got.tokens) == asked.max_tokens for asked, got in streams.ended)
    # Upon a KV cache of the weights before they are others than the model's.
    compared = () if scale.keep_kv else kinds
    distance = {kind: apart(bench, streams.ended, versions[kind]) for kind in compared}
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
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=KINDS,
        default=["staged", "loaded"],
        help="each beside the next",
    )
    parser.add_argument("--updates", type=int, help="of each kind, at each number of requests; default: 4")
    parser.add_argument(
        "--keep-kv",
        action="store_true",
        help="as with kvAfterUpdate: keep",
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
        if "swapped" in options.kinds:
            stack.enter_context(patch.object(vllm_compat, "FACTORY", step_clock.FACTORY))
        scale = replace(
            scale, in_flight=options.in_flight or scale.in_flight, updates=options.updates or scale.updates,
            kinds=options.kinds, keep_kv=options.keep_kv,
        )  # fmt: skip
        figures = asyncio.run(measure(scale, root, options.transports, partial(kept, options)))
    kept(options, figures, show=True)


def kept(options: argparse.Namespace, figures: Sequence[Figure], show: bool = False) -> None:
    """Write figures to the results."""
    said = "one step at a time, " if options.one_step else ""
    said += "KV kept, " if options.keep_kv else ""
    named = [replace(each, name=f"{said}{each.name}") for each in figures]
    record("weight_staging", named, options.out or RESULTS, show=show)


if __name__ == "__main__":
    main()
