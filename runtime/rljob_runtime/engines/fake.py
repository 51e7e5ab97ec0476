"""An engine without a model, for tests and simulation: real scheduling, made-up tokens.

Guarantees the protocol's contract under any asyncio clock, virtual or real. One engine step yields one token
for each running request and takes `step_seconds + sequence_seconds * running`; a request's prompt costs
`prefill_seconds` per token once per admission and after each recomputation of its KV cache. At most
`max_running` requests run; later ones wait in order of arrival.

Nothing ticks: the engine computes what was generated up to now whenever somebody looks or interferes, and a
timer wakes it when the next request ends. So what it tells is exact at any time, however far a virtual clock
jumps.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rljob_runtime.engines.progress import ProgressReports
from rljob_runtime.engines.protocol import (
    EngineDied,
    FinishedText,
    LoadSnapshot,
    PauseMode,
    ProgressListener,
    Request,
    WeightRef,
    check_request,
)
from rljob_runtime.engines.spans import SpanRecorder
from rljob_runtime.samples import Generation
from rljob_runtime.site.own_start import StartPart
from rljob_runtime.weights.contents import check_same_model, tensor_shapes
from rljob_runtime.weights.shm import reading

FAKE_TOKEN = 5
_UNLIMITED = 2**31
_ROUNDING = 1e-9
"""Part of a step that may be missing from a whole one: sums of seconds are not exact."""


@dataclass(frozen=True)
class FakeTiming:
    """The cost model, in seconds."""

    step_seconds: float = 0.01
    sequence_seconds: float = 0.0
    prefill_seconds: float = 0.0
    load_seconds: float = 0.0

    def times(self, slowness: float) -> "FakeTiming":
        """Of an engine that takes so many times as long, but for loading weights."""
        return replace(
            self,
            step_seconds=self.step_seconds * slowness,
            sequence_seconds=self.sequence_seconds * slowness,
            prefill_seconds=self.prefill_seconds * slowness,
        )

    def step(self, running: int) -> float:
        """Seconds of a step beside so many running requests."""
        return self.step_seconds + self.sequence_seconds * running


@dataclass
class _Running:
    request: Request
    length: int
    """Tokens that it generates unless it is aborted."""
    future: "asyncio.Future[Generation]"
    spans: SpanRecorder
    done: int = 0
    prefill_left: float = 0.0


class FakeEngine:
    """See the module's guarantees."""

    def __init__(
        self,
        name: str,
        length_of: Callable[[Request], int],
        max_running: int = 64,
        timing: FakeTiming = FakeTiming(),
        max_length: int = _UNLIMITED,
        model_folder: str | Path | None = None,
        kv_tokens: int | None = None,
    ) -> None:
        """`length_of` gives the length of the whole response that a request belongs to, in tokens; a
        continuation generates what is left of it. `max_length` is the most tokens of prompt and response
        together. With a `model_folder` it takes weights of that model alone, as an engine that runs the model
        does; else it takes any version without a look at the weights. `kv_tokens` is what it says of its KV
        cache, and limits nothing."""
        self.name = name
        self.version = 0
        self.stages = False
        self.start_parts: Sequence[StartPart] = ()
        self._length_of = length_of
        self._max_running = max_running
        self._timing = timing
        self._max_length = max_length
        self._tensors = None if model_folder is None else tensor_shapes(Path(model_folder))
        self._running: dict[str, _Running] = {}
        self._waiting: dict[str, _Running] = {}
        self._started = self._paused = self._draining = False
        self._dead: str | None = None
        self._drained = asyncio.Event()
        self._generated = 0
        self._begun = 0.0
        """When the step under way began, or its prefill."""
        self._paused_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._turn_due = False
        self._kv_tokens = kv_tokens
        self._prefilled = 0
        """Tokens, of requests that have generated one."""
        self._reports = ProgressReports(self._progress, lambda: self._prefilled)

    async def start(self, version: int) -> None:
        self.version = version
        self._started = True

    async def submit(self, request: Request) -> Generation:
        self._check_alive()
        if not self._started:
            raise RuntimeError(f"engine {self.name}: submit before start")
        known = request.request_id in self._running or request.request_id in self._waiting
        check_request(request, self._max_length, known)
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        rest = request.max_tokens if request.exact else max(0, self._length_of(request) - request.generated)
        length = min(rest, request.max_tokens, self._max_length - len(request.tokens))
        self._waiting[request.request_id] = _Running(request, length, future, SpanRecorder(self.version))
        self._change()
        try:
            return await future
        finally:
            if future.cancelled():
                await self.abort(request.request_id)

    async def abort(self, request_id: str) -> None:
        self._settle()
        running = self._running.pop(request_id, None) or self._waiting.pop(request_id, None)
        if running is not None:
            self._finish(running, aborted=True)
            self._change()
        if not self._running:
            self._drained.set()

    async def pause(self, mode: PauseMode) -> None:
        self._check_alive()
        self._settle()
        if mode == "wait":
            # None is admitted from here on, so the running ones alone are waited for.
            self._draining = True
            while self._running:
                self._drained.clear()
                await self._drained.wait()
                self._check_alive()
        if not self._paused:
            self._paused = True
            self._paused_at = asyncio.get_running_loop().time()
        if mode == "abort":
            for request_id in [*self._running, *self._waiting]:
                await self.abort(request_id)

    async def prepare(self, ref: WeightRef) -> None:
        """Nothing: what this engine loads is on its machine."""

    async def load(self, ref: WeightRef) -> None:
        self._check_alive()
        if not self._paused:
            raise RuntimeError(f"engine {self.name}: load while not paused")
        if self._tensors is not None:
            with reading(Path(ref.location)) as folder:
                check_same_model(self._tensors, folder)
        await asyncio.sleep(self._timing.load_seconds)
        self._check_alive()
        self.version = ref.version
        for running in [*self._running.values(), *self._waiting.values()]:
            # What was generated so far keeps its label.
            running.spans.mark(ref.version, running.done)

    async def swap(self, ref: WeightRef) -> bool:
        """Never: it loads in its pause."""
        return False

    async def resume(self) -> None:
        self._check_alive()
        if self._paused:
            # The step under way stood still as well: it ends later by the length of the pause.
            self._begun += asyncio.get_running_loop().time() - self._paused_at
            for running in self._running.values():
                running.prefill_left = self._prefill(running)
        self._paused = self._draining = False
        self._change()

    async def load_snapshot(self) -> LoadSnapshot:
        self._check_alive()
        self._settle()
        count = len(self._running) + len(self._waiting)
        return LoadSnapshot(self.version, count, self._paused, self._generated, self._kv_tokens)

    def learn(self, texts: Sequence[FinishedText]) -> None:
        """Nothing: it does not draft."""

    def counters(self) -> Mapping[str, float]:
        return {"running": float(len(self._running)), "waiting": float(len(self._waiting))}

    def on_progress(self, listener: ProgressListener, seconds: float) -> None:
        self._reports.listen(listener, seconds)

    async def close(self) -> None:
        self.die("it was closed")

    def die(self, reason: str) -> None:
        """End at once, as a killed process would. The first reason stays."""
        if self._dead is None:
            self._dead = f"engine {self.name}: {reason}"
        for running in [*self._running.values(), *self._waiting.values()]:
            if not running.future.done():
                running.future.set_exception(EngineDied(self._dead))
        self._running.clear()
        self._waiting.clear()
        # A pause that waits for the running requests wakes, and finds the engine dead.
        self._drained.set()
        if self._timer is not None:
            self._timer.cancel()
        self._reports.stop()

    def _change(self) -> None:
        """The set of running requests changes: admit and set the timer once, however many changes this turn
        of the loop brings."""
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Admit who can run, and set the timer for the next request that ends."""
        self._turn_due = False
        self._settle()
        self._admit()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running and not self._paused:
            prefill, step, steps = self._ahead()
            when = self._begun + prefill + steps * step
            self._timer = asyncio.get_running_loop().call_at(when, self._turn)
            self._reports.wake()

    def _admit(self) -> None:
        if self._paused or self._draining:
            return
        while self._waiting and len(self._running) < self._max_running:
            request_id = next(iter(self._waiting))
            running = self._waiting.pop(request_id)
            if running.length == 0:
                self._finish(running, aborted=False)
                continue
            running.prefill_left = self._prefill(running)
            self._running[request_id] = running

    def _prefill(self, running: _Running) -> float:
        return self._timing.prefill_seconds * (len(running.request.tokens) + running.done)

    def _ahead(self) -> tuple[float, float, int]:
        """Until the next running request ends: seconds of prefill, seconds for a step, and steps."""
        prefill = max(running.prefill_left for running in self._running.values())
        step = self._timing.step(len(self._running))
        return prefill, step, min(running.length - running.done for running in self._running.values())

    def _settle(self) -> None:
        """Compute what has happened until now: tokens generated, requests ended, waiting ones admitted."""
        now = asyncio.get_running_loop().time()
        while self._running and not self._paused:
            # One round for each request that ends: from then on fewer run, and a step takes another time. The
            # beginning may lie after now by a rounding error.
            elapsed = max(0.0, now - self._begun)
            prefill, step, steps = self._ahead()
            spent = min(elapsed, prefill)
            for running in self._running.values():
                running.prefill_left = max(0.0, running.prefill_left - spent)
            self._begun += spent
            # Steps that take no time are all over at once.
            tokens = steps if step == 0 else min(steps, int((elapsed - spent) / step + _ROUNDING))
            if elapsed < prefill or tokens == 0:
                return
            self._begun += tokens * step
            self._credit(tokens)
            self._admit()
        if not self._paused:
            # Nothing ran until now: the next step begins here.
            self._begun = now

    def _progress(self) -> dict[str, int]:
        """Tokens of each running request, by its id."""
        if self._paused:
            return {}
        self._settle()
        return {request_id: running.done for request_id, running in self._running.items()}

    def _credit(self, tokens: int) -> None:
        """Every running request got `tokens`."""
        for request_id, running in list(self._running.items()):
            if running.done == 0:
                self._prefilled += len(running.request.tokens)
            running.done += tokens
            self._generated += tokens
            if running.done == running.length:
                del self._running[request_id]
                self._finish(running, aborted=False)
        if not self._running:
            self._drained.set()

    def _finish(self, running: _Running, aborted: bool) -> None:
        if running.future.done():
            return
        request = running.request
        whole = not request.exact and request.generated + running.done == self._length_of(request)
        running.future.set_result(
            Generation(
                request_id=request.request_id,
                tokens=np.full(running.done, FAKE_TOKEN, np.int32),
                log_probs=np.zeros(running.done, np.float32),
                spans=running.spans.spans(running.done),
                finish="abort" if aborted else "stop" if whole else "length",
            )
        )

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDied(self._dead)
