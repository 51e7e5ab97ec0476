"""A process that hosts engines, for `engines_per_accelerator`: it does as its main process says.

The engines are those that a job has; what a setup changes of them is changed here, and nowhere else.
"""

import asyncio
import gc
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines import vllm_compat, vllm_configured, vllm_scheduler
from rljob_runtime.engines.joint import JointEngine
from rljob_runtime.engines.protocol import Engine, Request, Sampling
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.engines.vllm_shape import arguments
from rljob_runtime.fleet.reporting import report_seconds
from tests.bench.engine_step import Work

RUN_SECONDS = 120.0
"""Longest that one measurement may take."""
_BLOCK = 16
"""Tokens of a block of the KV cache on GPUs."""


@dataclass(frozen=True)
class Setup:
    """One way to set up an accelerator."""

    name: str
    engines: int = 1
    hosts: int = 1
    """Processes that the engines are in; those of one process are one `JointEngine`, as in a job."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of vLLM's `AsyncEngineArgs`, over those of a job; None leaves one out."""
    environment: Mapping[str, str] = field(default_factory=dict)
    hold_outputs: bool = True


@dataclass(frozen=True)
class Change:
    """What is changed in running engines."""

    name: str = ""
    collect: bool = True
    """Whether the engine core's garbage collector runs."""
    bound: bool = False
    """Whether the engine core's main thread has a CPU to itself, of all that the engines use."""
    step_tokens: int | None = None
    """Most tokens of a step; None: as the engine has it."""
    update: bool = False
    """Whether the engines are paused once half the tokens are there, so that they drop their KV cache."""


@dataclass(frozen=True)
class Ran:
    """What a process did with its part of the requests."""

    tokens: int
    begin: float
    end: float
    """Of the monotonic clock, which all processes share."""
    front: float
    core: float
    """CPU seconds of the process that hosts the engines, and of an engine core's main thread."""


def scheduler(**arguments: Any) -> Any:
    """The scheduler of a job, with a utility `vary` beside those that it adds."""
    from vllm.v1.engine.core import EngineCoreProc

    made = vllm_scheduler.scheduler(**arguments)
    most = made.max_num_scheduled_tokens

    def vary(core: Any, collect: bool, step_tokens: int) -> None:
        (gc.enable if collect else gc.disable)()
        core.scheduler.max_num_scheduled_tokens = min(step_tokens or most, most)

    EngineCoreProc.vary = vary
    return made


class Hosted:
    """The engines of a process, and its part of what is to be done."""

    def __init__(self, setup: Setup, index: int, folder: Path, works: list[Work], tiny: bool) -> None:
        self._setup, self._index, self._tiny = setup, index, tiny
        self._cpus = sorted(os.sched_getaffinity(0))
        count = setup.engines // setup.hosts
        parts = [(self._part(work)[place::count], work.tokens) for work in works for place in range(count)]
        self._engines = [
            VllmEngine(
                f"{setup.name} {index}/{place}", folder, Sampling(), max(len(one) for one, _ in parts), 1024,
                "float32" if tiny else "bfloat16", VllmOptions(), "cpu" if tiny else "nvidia",
                seed=count * index + place, hold_outputs=setup.hold_outputs,
            )
            for place in range(count)
        ]  # fmt: skip
        self._engine: Engine = self._engines[0] if count == 1 else JointEngine(setup.name, self._engines)
        self._other = dict(setup.arguments)
        if not tiny:
            # As much as the requests need: by itself an engine takes for KV cache what it finds free, and
            # engines that start at the same time mistake each other's memory for their own.
            needed = max(
                sum(_kv_bytes(len(prompt) + tokens) for prompt in prompts) for prompts, tokens in parts
            )
            self._other |= {"kv_cache_memory_bytes": int(1.05 * needed), "gpu_memory_utilization": 0.1}
        self._half = asyncio.Event()
        self._aim = 0

    def _part(self, work: Work) -> list[Any]:
        return work.prompts()[self._index :: self._setup.hosts]

    async def start(self) -> list[dict[str, Any]]:
        """Returns what is to be known of each engine."""
        os.environ.update(self._setup.environment)

        def changed(*given: Any) -> dict[str, Any]:
            both = {**arguments(*given), **self._other}
            return {name: value for name, value in both.items() if value is not None}

        # Not as assignments, which a checker of types would refuse.
        setattr(vllm_configured, "arguments", changed)  # noqa: B010
        setattr(vllm_compat, "FACTORY", f"{__name__}.scheduler")  # noqa: B010
        begin = time.monotonic()
        await self._engine.start(0)
        seconds = round(time.monotonic() - begin)
        self._engine.on_progress(self._progressed, 0.02 if self._tiny else report_seconds(1))
        self._cores = [each._live_core() for each in self._engines]
        if any(core.holds_outputs != self._setup.hold_outputs for core in self._cores):
            raise RuntimeError("this vLLM cannot hold outputs back")
        return [{"seconds to start": seconds, **_facts(core)} for core in self._cores]

    async def prepare(self, change: Change) -> None:
        """Change what is to be changed; prompts that were computed before are forgotten."""
        own = self._cpus[-self._setup.engines :] if change.bound else []
        for place, core in enumerate(self._cores):
            if self._setup.hold_outputs:
                await core._client.call_utility_async("vary", change.collect, change.step_tokens or 0)
            alone = own[self._index * len(self._cores) + place] if own else None
            _place(core.processes[0].pid, alone, set(self._cpus) - set(own))
            await core._llm.reset_prefix_cache()

    async def run(self, work: Work, change: Change) -> Ran:
        tag = time.monotonic_ns()
        asked = [
            Request(f"{tag}-{index}", prompt, work.tokens, index, exact=True)
            for index, prompt in enumerate(self._part(work))
        ]
        self._half.clear()
        self._aim = len(asked) * work.tokens // 2
        begin, front, busy = time.monotonic(), time.process_time(), self._core_seconds()
        tasks = [asyncio.create_task(self._engine.submit(each)) for each in asked]
        if change.update:
            async with asyncio.timeout(RUN_SECONDS):
                await self._half.wait()
            await self._engine.pause("keep")
            await self._engine.resume()
        tokens = sum(len(got.log_probs) for got in await asyncio.gather(*tasks))
        end = time.monotonic()
        if tokens != len(asked) * work.tokens:
            raise RuntimeError(f"{tokens} log-probabilities came of {work}")
        return Ran(tokens, begin, end, time.process_time() - front, self._core_seconds() - busy)

    async def close(self) -> None:
        await self._engine.close()

    def _core_seconds(self) -> float:
        """CPU time of an engine core's main thread, on average."""
        times = [_main_thread_seconds(core.processes[0].pid) for core in self._cores]
        return sum(times) / len(times)

    def _progressed(self, tokens: Mapping[str, int], prefilled: int) -> None:
        if sum(tokens.values()) >= self._aim:
            self._half.set()


def _facts(core: Any) -> dict[str, Any]:
    """What is to be known of an engine core."""
    config = core._llm.vllm_config
    return {
        "asynchronous scheduling": config.scheduler_config.async_scheduling,
        "tokens a step": config.scheduler_config.max_num_batched_tokens,
        "tokens of KV cache": core.kv_tokens,
        "second model runner": getattr(config, "use_v2_model_runner", None),
        "largest graph": max(config.compilation_config.cudagraph_capture_sizes or [0]),
    }


def _kv_bytes(tokens: int) -> int:
    """Of a response that has so many tokens at its end, the prompt's among them; with a block to spare."""
    layers, heads, size, width = 28, 8, 128, 2
    return (tokens // _BLOCK + 2) * _BLOCK * 2 * layers * heads * size * width


def _place(core: int, own: int | None, others: set[int]) -> None:
    """Let the engine core's main thread run on CPU `own`, and all other threads on `others`; where `own` is
    None, that one as well."""
    for process in (os.getpid(), core):
        for thread in map(int, os.listdir(f"/proc/{process}/task")):
            # It may have ended by now.
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, {own} if thread == core and own is not None else others)


def _main_thread_seconds(process: int) -> float:
    """CPU time of a process's main thread."""
    fields = Path(f"/proc/{process}/task/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _serve(pipe: Connection, hosted: Hosted) -> None:
    """Do what the main process says, until it closes its end."""
    try:
        pipe.send(await hosted.start())
        while (order := await asyncio.to_thread(pipe.recv)) is not None:
            work, change = order
            pipe.send(await (hosted.prepare(change) if work is None else hosted.run(work, change)))
    finally:
        await hosted.close()


def host(pipe: Connection, *arguments: Any) -> None:
    """A process with engines."""
    asyncio.run(_serve(pipe, Hosted(*arguments)))
