"""An engine without a model, for tests and simulation: real scheduling, made-up tokens.

Guarantees the protocol's contract under any asyncio clock, virtual or real. One engine step yields one token
for each running request and takes `step_seconds + sequence_seconds * running`; a request's prompt costs
`prefill_seconds` per token once per admission and after each recomputation of its KV cache. At most
`max_running` requests run; later ones wait in order of arrival.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rljob_runtime.engines.protocol import EngineDied, LoadSnapshot, PauseMode, Request, WeightRef
from rljob_runtime.samples import Generation, Span, join_spans

FAKE_TOKEN = 5


@dataclass(frozen=True)
class FakeTiming:
    """The cost model, in seconds."""

    step_seconds: float = 0.01
    sequence_seconds: float = 0.0
    prefill_seconds: float = 0.0
    load_seconds: float = 0.0


@dataclass
class _Running:
    request: Request
    length: int
    future: "asyncio.Future[Generation]"
    done: int = 0
    spans: tuple[Span, ...] = ()
    prefill_left: float = 0.0


class FakeEngine:
    """See the module's guarantees."""

    def __init__(
        self,
        name: str,
        length_of: Callable[[Request], int],
        max_running: int = 64,
        timing: FakeTiming = FakeTiming(),
    ) -> None:
        """`length_of` gives the length of the whole response that a request belongs to, in tokens; a
        continuation generates what is left of it."""
        self.name = name
        self.version = 0
        self._length_of = length_of
        self._max_running = max_running
        self._timing = timing
        self._running: dict[str, _Running] = {}
        self._waiting: dict[str, _Running] = {}
        self._paused = False
        self._draining = False
        self._closed: str | None = None
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()
        self._generated = 0
        self._carry = 0.0
        self._loop_task: asyncio.Task[None] | None = None

    async def start(self, version: int) -> None:
        self.version = version
        self._loop_task = asyncio.create_task(self._run(), name=f"fake-engine-{self.name}")

    async def submit(self, request: Request) -> Generation:
        if self._closed:
            raise EngineDied(self._closed)
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        rest = min(request.max_tokens, max(0, self._length_of(request) - request.generated))
        self._waiting[request.request_id] = _Running(request, rest, future)
        self._changed.set()
        try:
            return await future
        finally:
            if future.cancelled():
                await self.abort(request.request_id)

    async def abort(self, request_id: str) -> None:
        running = self._running.pop(request_id, None) or self._waiting.pop(request_id, None)
        if running is not None:
            self._finish(running, aborted=True)
            self._changed.set()

    async def pause(self, mode: PauseMode) -> None:
        self._check_alive()
        if mode == "wait":
            self._draining = True
            self._changed.set()
            while self._running:
                self._drained.clear()
                await self._drained.wait()
                self._check_alive()
        self._paused = True
        self._changed.set()
        if mode == "abort":
            for request_id in [*self._running, *self._waiting]:
                await self.abort(request_id)

    async def load(self, ref: WeightRef) -> None:
        self._check_alive()
        if not self._paused:
            raise RuntimeError(f"engine {self.name}: load while not paused")
        await asyncio.sleep(self._timing.load_seconds)
        self.version = ref.version

    async def resume(self) -> None:
        self._check_alive()
        for running in self._running.values():
            running.prefill_left = self._prefill(running)
        self._paused = self._draining = False
        self._changed.set()

    async def load_snapshot(self) -> LoadSnapshot:
        self._check_alive()
        count = len(self._running) + len(self._waiting)
        return LoadSnapshot(self.version, count, self._paused, self._generated)

    async def close(self) -> None:
        self.die("closed")

    def die(self, reason: str) -> None:
        """End at once, as a killed process would."""
        self._closed = f"engine {self.name}: {reason}"
        for running in [*self._running.values(), *self._waiting.values()]:
            if not running.future.done():
                running.future.set_exception(EngineDied(self._closed))
        self._running.clear()
        self._waiting.clear()
        self._drained.set()
        if self._loop_task is not None:
            self._loop_task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            self._admit()
            if self._paused or not self._running:
                await self._changed.wait()
                continue
            prefill = max(running.prefill_left for running in self._running.values())
            step = self._timing.step_seconds + self._timing.sequence_seconds * len(self._running)
            steps = min(running.length - running.done for running in self._running.values())
            began = loop.time()
            try:
                await asyncio.wait_for(self._changed.wait(), max(0.0, prefill + steps * step - self._carry))
                elapsed = loop.time() - began + self._carry
            except TimeoutError:
                elapsed = prefill + steps * step
            self._carry = self._advance(elapsed, prefill, step, steps)

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

    def _advance(self, elapsed: float, prefill: float, step: float, steps: int) -> float:
        """Credit what `elapsed` seconds brought; returns the seconds already spent on an unfinished step."""
        if elapsed < prefill:
            for running in self._running.values():
                running.prefill_left = max(0.0, running.prefill_left - elapsed)
            return 0.0
        tokens = steps if step == 0 else min(steps, int((elapsed - prefill) / step + 1e-9))
        for request_id, running in list(self._running.items()):
            running.prefill_left = 0.0
            if tokens:
                running.spans = join_spans(running.spans, (Span(self.version, 0, tokens),))
                running.done += tokens
                self._generated += tokens
            if running.done == running.length:
                del self._running[request_id]
                self._finish(running, aborted=False)
        if not self._running:
            self._drained.set()
        return max(0.0, elapsed - prefill - tokens * step)

    def _finish(self, running: _Running, aborted: bool) -> None:
        if running.future.done():
            return
        whole = running.request.generated + running.done == self._length_of(running.request)
        running.future.set_result(
            Generation(
                request_id=running.request.request_id,
                tokens=np.full(running.done, FAKE_TOKEN, np.int32),
                log_probs=np.zeros(running.done, np.float32),
                spans=running.spans,
                finish="abort" if aborted else "stop" if whole else "length",
            )
        )

    def _check_alive(self) -> None:
        if self._closed:
            raise EngineDied(self._closed)
