"""A small in-process engine on Hugging Face transformers, for CPUs.

Keeps the contract of `protocol.Engine`, and with one thread also: a response's tokens and log-probabilities
are a function of the weights, its prompt and its seed alone, bit for bit, whatever runs beside it and however
often it is aborted and continued (see `torch_model` and `torch_sampling`). With `keep_kv` they also depend on
the weights that came meanwhile.

The model runs in a thread of its own; requests, aborts and pauses act between two steps. One step takes one
token in each slot: the next of a prompt whose KV cache is not complete, else the one drawn last.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.engines.progress import ProgressReports
from rljob_runtime.engines.protocol import (
    EngineDied,
    FinishedText,
    LoadSnapshot,
    PauseMode,
    ProgressListener,
    Request,
    Sampling,
    WeightRef,
    check_request,
)
from rljob_runtime.engines.spans import SpanRecorder
from rljob_runtime.engines.stays import Mark, Pauses, timing_of
from rljob_runtime.samples import FinishReason, Generation
from rljob_runtime.site.large_imports import large_imports
from rljob_runtime.site.own_start import OwnStart, StartPart
from rljob_runtime.weights.shm import reading

if TYPE_CHECKING:
    from rljob_runtime.engines.torch_model import SlotModel


@dataclass(eq=False)
class _Running:
    request: Request
    future: "asyncio.Future[Generation]"
    spans: SpanRecorder
    tokens: list[int]
    """Prompt and response."""
    cached: int = 0
    """How many of `tokens` the KV cache holds."""
    log_probs: list[float] = field(default_factory=list)
    submitted: float = field(default_factory=time.monotonic)
    marks: list[Mark] = field(default_factory=list)

    def mark(self, what: Literal["scheduled", "token", "preempted"]) -> None:
        """This happens to it now."""
        self.marks.append((what, time.monotonic()))

    @property
    def computing(self) -> bool:
        """Whether the token that comes next is the first since its KV cache was begun."""
        return self.marks[-1][0] == "scheduled"


class TorchEngine:
    """See the module's guarantees."""

    def __init__(
        self,
        name: str,
        model_folder: str | Path,
        sampling: Sampling,
        max_running: int,
        max_length: int,
        threads: int = 1,
        dtype: str = "float32",
        keep_kv: bool = False,
    ) -> None:
        """`max_running` slots; `max_length` is the most tokens of prompt and response together; `keep_kv`:
        see `protocol`."""
        self.name = name
        self.version = 0
        self.stages = False
        self._start = OwnStart()
        self._folder = Path(model_folder)
        self._sampling = sampling
        self._max_length = max_length
        self._dtype = dtype
        self._threads = threads
        self.keeps_kv = keep_kv
        self._slots: list[_Running | None] = [None] * max_running
        self._waiting: dict[str, _Running] = {}
        self._paused = self._draining = False
        self._dead: str | None = None
        self._generated = 0
        self._changed = asyncio.Event()
        self._at_rest = asyncio.Event()
        self._drained = asyncio.Event()
        self._pauses = Pauses()
        self._model: SlotModel | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._loop_task: asyncio.Task[None] | None = None
        # A step takes a token of each request, of a prompt or not: no request waits for another's prefill.
        self._reports = ProgressReports(self._progress, lambda: 0)

    @property
    def start_parts(self) -> Sequence[StartPart]:
        return self._start.parts

    async def start(self, version: int) -> None:
        self.version = version
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"torch-engine-{self.name}")
        self._model = await self._in_thread(self._build)
        self._loop_task = asyncio.create_task(self._run(), name=f"torch-engine-{self.name}")
        self._loop_task.add_done_callback(self._on_loop_end)

    async def submit(self, request: Request) -> Generation:
        self._check_alive()
        if self._loop_task is None:
            raise RuntimeError(f"engine {self.name}: submit before start")
        check_request(request, self._max_length, self._knows(request.request_id))
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        tokens = [int(token) for token in request.tokens]
        self._waiting[request.request_id] = _Running(request, future, SpanRecorder(self.version), tokens)
        self._changed.set()
        try:
            return await future
        finally:
            if future.cancelled():
                await self.abort(request.request_id)

    async def abort(self, request_id: str) -> None:
        running = self._waiting.pop(request_id, None)
        for slot, occupant in enumerate(self._slots):
            if occupant is not None and occupant.request.request_id == request_id:
                running = occupant
                self._release(slot)
        if running is not None:
            self._finish(running, "abort")
            self._changed.set()

    async def pause(self, mode: PauseMode) -> None:
        self._check_alive()
        if mode == "wait":
            # None is admitted from here on, so the slots empty.
            self._draining = True
            self._changed.set()
            while any(self._slots):
                self._drained.clear()
                await self._drained.wait()
                self._check_alive()
        self._paused = True
        self._changed.set()
        # A step may be under way in the thread.
        await self._at_rest.wait()
        self._check_alive()
        self._pauses.begin(time.monotonic())
        if mode == "abort":
            for running in [*self._slots, *self._waiting.values()]:
                if running is not None:
                    await self.abort(running.request.request_id)

    async def prepare(self, ref: WeightRef) -> None:
        """Nothing: what this engine loads is on its machine."""

    async def load(self, ref: WeightRef) -> None:
        self._check_alive()
        if not self._paused:
            raise RuntimeError(f"engine {self.name}: load while not paused")
        if ref.transport != "shm":
            raise ValueError(
                f"engine {self.name}: the torch engine takes weights by shm, not {ref.transport}"
            )
        await self._in_thread(self._load, Path(ref.location))
        self.version = ref.version
        for running in [*self._slots, *self._waiting.values()]:
            if running is not None:
                running.spans.mark(ref.version, len(running.log_probs))
        self._drop_kv()

    async def swap(self, ref: WeightRef) -> bool:
        """Never: it loads in its pause."""
        return False

    async def resume(self) -> None:
        self._check_alive()
        there = [running for running in [*self._slots, *self._waiting.values()] if running is not None]
        now = time.monotonic()
        self._pauses.end(now, oldest=min((running.submitted for running in there), default=now))
        self._paused = self._draining = False
        self._changed.set()

    async def load_snapshot(self) -> LoadSnapshot:
        self._check_alive()
        count = sum(running is not None for running in self._slots) + len(self._waiting)
        kv_tokens = len(self._slots) * self._max_length
        return LoadSnapshot(self.version, count, self._paused, self._generated, kv_tokens)

    def learn(self, texts: Sequence[FinishedText]) -> None:
        """Nothing: it does not draft."""

    def counters(self) -> Mapping[str, float]:
        running = [occupant for occupant in self._slots if occupant is not None]
        return {
            "running": float(len(running)),
            "waiting": float(len(self._waiting)),
            "kv_use": sum(each.cached for each in running) / (len(self._slots) * self._max_length),
        }

    def on_progress(self, listener: ProgressListener, seconds: float) -> None:
        self._reports.listen(listener, seconds)

    async def close(self) -> None:
        self._die("it was closed")
        if self._loop_task is not None:
            self._loop_task.cancel()
        if self._thread is not None:
            # It waits for the step under way, which must not hold up the loop.
            await asyncio.to_thread(self._thread.shutdown)

    def _build(self) -> "SlotModel":
        with self._start.part("imports"), large_imports():
            import torch

            from rljob_runtime.engines.torch_model import SlotModel

        torch.set_num_threads(self._threads)
        with self._start.part("load"):
            return SlotModel(self._folder, len(self._slots), self._max_length, self._dtype)

    def _drop_kv(self) -> None:
        """The KV cache is of the old weights: it is filled anew, from the first token on, unless it is kept
        for those that have tokens of the old weights too."""
        for running in self._slots:
            if running is not None and not (self.keeps_kv and running.log_probs):
                running.cached = 0
                running.mark("preempted")
                running.mark("scheduled")

    def _load(self, folder: Path) -> None:
        assert self._model is not None
        with reading(folder):
            self._model.load(folder)

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _run(self) -> None:
        while True:
            # Cleared before looking: what changes from here on ends the wait below.
            self._changed.clear()
            self._admit()
            active = [(slot, running) for slot, running in enumerate(self._slots) if running is not None]
            if self._paused or not active:
                self._at_rest.set()
                await self._changed.wait()
                continue
            self._at_rest.clear()
            self._reports.wake()
            tokens, log_probs = await self._in_thread(self._step, active)
            for slot, running in active:
                # One that was aborted during the step has returned without this token.
                if self._slots[slot] is running:
                    self._advance(slot, running, int(tokens[slot]), float(log_probs[slot]))

    def _admit(self) -> None:
        if self._paused or self._draining:
            return
        for slot, occupant in enumerate(self._slots):
            if not self._waiting:
                return
            if occupant is None:
                self._slots[slot] = admitted = self._waiting.pop(next(iter(self._waiting)))
                admitted.mark("scheduled")

    def _step(self, active: list[tuple[int, _Running]]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Put one token into every slot, and draw what would come next in each: tokens and log-probabilities,
        of shape (slots,). Runs in the engine's thread."""
        from rljob_runtime.engines.torch_sampling import draw_each, seed_word, uniforms

        assert self._model is not None
        count = len(self._slots)
        # Free slots take token 0 at position 0: every step has the same shape.
        inputs, positions = np.zeros(count, np.int64), np.zeros(count, np.int64)
        seeds, draws = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        samplings = [self._sampling] * count
        for slot, running in active:
            inputs[slot] = running.tokens[running.cached]
            positions[slot] = running.cached
            seeds[slot] = seed_word(running.request.seed)
            # Position in the whole response, over all attempts: a continuation draws what would have come.
            draws[slot] = running.request.generated + len(running.log_probs)
            samplings[slot] = self._sampling_of(running)
        return draw_each(self._model.step(inputs, positions), uniforms(seeds, draws), samplings)

    def _sampling_of(self, running: _Running) -> Sampling:
        return running.request.sampling or self._sampling

    def _advance(self, slot: int, running: _Running, token: int, log_prob: float) -> None:
        running.cached += 1
        # Its tokens are not all in the KV cache yet: what comes next is known, and the draw is of no use.
        if running.cached < len(running.tokens):
            return
        if running.computing:
            running.mark("token")
        running.tokens.append(token)
        running.log_probs.append(log_prob)
        self._generated += 1
        stopped = token in self._sampling_of(running).stop_token_ids and not running.request.exact
        full = len(running.log_probs) == running.request.max_tokens or len(running.tokens) == self._max_length
        if stopped or full:
            self._release(slot)
            self._finish(running, "stop" if stopped else "length")

    def _release(self, slot: int) -> None:
        self._slots[slot] = None
        if not any(self._slots):
            self._drained.set()

    def _finish(self, running: _Running, finish: FinishReason) -> None:
        if running.future.done():
            return
        count = len(running.log_probs)
        running.future.set_result(
            Generation(
                request_id=running.request.request_id,
                tokens=np.array(running.tokens[len(running.tokens) - count :], np.int32),
                log_probs=np.array(running.log_probs, np.float32),
                spans=running.spans.spans(count),
                finish=finish,
                timing=timing_of(running.submitted, running.marks, time.monotonic(), self._pauses),
            )
        )

    def _progress(self) -> dict[str, int]:
        """Tokens of each running request, by its id."""
        if self._paused:
            return {}
        return {running.request.request_id: len(running.log_probs) for running in self._slots if running}

    def _knows(self, request_id: str) -> bool:
        return request_id in self._waiting or any(
            occupant is not None and occupant.request.request_id == request_id for occupant in self._slots
        )

    def _on_loop_end(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._die(f"{type(error).__name__}: {error}")

    def _die(self, reason: str) -> None:
        if self._dead is None:
            self._dead = f"engine {self.name}: {reason}"
        for running in [*self._slots, *self._waiting.values()]:
            if running is not None and not running.future.done():
                running.future.set_exception(EngineDied(self._dead))
        self._slots = [None] * len(self._slots)
        self._waiting.clear()
        self._reports.stop()
        # Whoever waits for one of them wakes, and finds the engine dead.
        for event in (self._drained, self._at_rest, self._changed):
            event.set()

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDied(self._dead)
