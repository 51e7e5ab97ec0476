"""Engines that share each decode step: one engine alone, or all data-parallel ranks of a large
expert-parallel model, which run in lockstep.

A step yields one token for each running request of each engine. It lasts as long as the engine with the
largest graph and the one with the most KV tokens need. What is admitted is prefilled before the step, and all
engines of the cohort stand still meanwhile. When an engine's KV cache is full its newest requests wait again,
and are prefilled once more.

Guarantees: no engine holds more KV tokens than fit, nor runs more requests than its limit; a request changes
its place only between two steps; many equal steps are taken at once, and their time is exact. Pure.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.simulate.agenda import Agenda
from rljob_runtime.simulate.attention import envelope_sum
from rljob_runtime.simulate.meter import Meter
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.requests import Requests

_ADMIT_SHARE = 0.97
"""Share of the KV cache up to which requests are admitted: without a margin each would soon push one out."""
_UNLIMITED = 1 << 60
"""KV tokens of an engine whose KV cache is as large as need be."""


class Cohort:
    """See the module's guarantees. Engines are numbered from 0 within it; arrays are [engines]."""

    def __init__(
        self,
        shapes: Sequence[EngineShape],
        requests: Requests,
        agenda: Agenda,
        physics: Physics,
        meter: Meter,
        ended: Callable[[int], None],
        left: Callable[[int], None],
        wake: Callable[["Cohort"], None],
    ) -> None:
        """`ended` is told of each request that is complete, `left` of each that was taken out before, and
        `wake` that the cohort stands between two steps and has something to do: `begin` is to be called once
        everything else of this moment has happened. `shapes` have one cost."""
        self._requests, self._agenda, self._physics, self._meter = requests, agenda, physics, meter
        self._ended, self._left, self._wake = ended, left, wake
        self._cost = shapes[0].cost
        self._limits = [shape.limit for shape in shapes]
        self._capacity = np.array(
            [_UNLIMITED if shape.kv_tokens is None else shape.kv_tokens for shape in shapes], dtype=np.int64
        )
        count = len(shapes)
        self.running: NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        """Requests of each engine that decode."""
        self.kv: NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        """Their KV tokens, as of the last boundary."""
        self._held = np.zeros(count, dtype=np.int64)
        """KV tokens of the requests that wait for a tool."""
        self._offsets: list[dict[int, int]] = [{} for _ in shapes]
        """Running requests of each engine, oldest first: steps of the cohort less tokens of the request."""
        self._queues: list[deque[int]] = [deque() for _ in shapes]
        """Requests that were placed, or pushed out of the KV cache, and wait for room in it."""
        self._waiting: list[set[int]] = [set() for _ in shapes]
        """Requests that wait for a tool, their KV kept."""
        self._queued: set[int] = set()
        """Engines whose queue is not empty."""
        self._home: dict[int, int] = {}
        """The engine of each request that is here."""
        self._leaving: set[int] = set()
        self._stops: list[tuple[int, int]] = []
        """Heap of (step, request): where it ends or calls a tool. Those of requests that went are dropped
        when they come to the top."""
        self._steps = 0
        self._planned = 0
        """Steps under way; 0: the cohort stands between two steps."""
        self._plan = 0
        """Number of the plan: the end of a plan that was changed must not count."""
        self._began = 0.0
        self._standing = 0.0
        """Seconds at the beginning of the plan in which weights are loaded."""
        self._prefill = 0.0
        """Seconds of prefill after them."""
        self._base = 0.0
        """Seconds of a step without what attention takes."""
        self._seen = 0.0
        """Up to when the engines' time is accounted for."""
        self._blocked_until = 0.0
        self._recompute = False

    # What others ask for

    def put(self, request: int, engine: int) -> None:
        """Run this request from the next boundary on. Raises `ValueError` beyond the engine's limit."""
        queue = self._queues[engine]
        if len(self._offsets[engine]) + len(self._waiting[engine]) + len(queue) >= self._limits[engine]:
            raise ValueError(f"engine {engine} has {self._limits[engine]} requests, its limit")
        self._home[request] = engine
        queue.append(request)
        self._queued.add(engine)
        self._touch()

    def remove(self, request: int) -> None:
        """Take this request out as soon as that can be: between two steps, and with the tool's answer."""
        engine = self._home[request]
        if request in self._offsets[engine]:
            self._leaving.add(request)
            if self._planned:
                self._touch()
            else:
                self._let_go()
        elif request in self._waiting[engine]:
            self._leaving.add(request)
        else:
            self._queues[engine].remove(request)
            if not self._queues[engine]:
                self._queued.discard(engine)
            self._depart(request)

    def stand_still(self, seconds: float, recompute: bool) -> None:
        """Load weights for so long from now; `recompute`: all KV is computed again with them."""
        self._blocked_until = max(self._blocked_until, self._agenda.now + seconds)
        self._recompute = self._recompute or recompute
        self._touch()

    def tokens(self, request: int) -> int:
        """Response tokens of a request that is here, as of now."""
        offset = self._offsets[self._home[request]].get(request)
        return self._requests.tokens[request] if offset is None else self._steps + self._done() - offset

    def progress(self) -> dict[int, int]:
        """The same of all that run."""
        steps = self._steps + self._done()
        return {request: steps - offset for offsets in self._offsets for request, offset in offsets.items()}

    # Steps

    def begin(self) -> None:
        """Admit what waits, and plan the steps up to the next boundary at which anything changes."""
        if self._planned:
            return
        now = self._agenda.now
        self._meter.stood(now - self._seen)
        self._seen = self._began = now
        self._relieve()
        again = self.kv * self._recompute
        self._recompute = False
        fills = again + self._admit()
        if not self.running.any():
            self._meter.changed(now, self.running)
            return
        self._standing = max(0.0, self._blocked_until - now)
        most = float(fills.max())
        self._prefill = most * self._cost.per_prefill_token + self._physics.admission_seconds * (most > 0)
        self._base = self._cost.step(int(self.running.max()), 0)
        self._planned = self._steps_to_boundary()
        self._schedule()
        self._meter.changed(now, self.running)

    def settle(self) -> None:
        """Account for the time up to now, at the simulation's end."""
        self._meter.stood(self._agenda.now - self._seen)
        self._seen = self._agenda.now

    def _schedule(self) -> None:
        self._plan += 1
        self._agenda.at(self._began + self._seconds(self._planned), partial(self._boundary, self._plan))

    def _boundary(self, plan: int) -> None:
        """The planned steps are done."""
        if plan != self._plan or not self._planned:
            return
        self._meter.worked(self.running, self._agenda.now - self._seen, self._standing)
        self._seen = self._agenda.now
        self._steps += self._planned
        self.kv += self._planned * self.running
        self._planned = 0
        while self._stops and self._stops[0][0] <= self._steps:
            step, request = heapq.heappop(self._stops)
            if self._stops_at(request, step):
                self._stop(request)
        self._let_go()
        self._wake(self)

    def _let_go(self) -> None:
        """Between two steps: what is to leave and runs, leaves."""
        for request in sorted(self._leaving):
            engine = self._home[request]
            if request in self._offsets[engine]:
                self._suspend(request, engine)
                self._requests.cached[request] = True
                self._depart(request)

    def _stop(self, request: int) -> None:
        """It is complete, or calls a tool."""
        engine = self._home[request]
        self._suspend(request, engine)
        requests = self._requests
        if requests.tokens[request] >= requests.lengths[request]:
            self._leaving.discard(request)
            del self._home[request]
            self._ended(request)
            return
        waits = requests.waits
        assert waits is not None
        self._waiting[engine].add(request)
        self._held[engine] += requests.kv(request)
        self._agenda.at(self._agenda.now + waits.seconds, partial(self._answered, request))

    def _answered(self, request: int) -> None:
        """The tool's answer is here; the request goes on before those that wait for room."""
        engine = self._home[request]
        self._waiting[engine].discard(request)
        self._held[engine] -= self._requests.kv(request)
        self._requests.cached[request] = True
        if request in self._leaving:
            self._depart(request)
            self._touch()
            return
        self._queues[engine].appendleft(request)
        self._queued.add(engine)
        self._touch()

    def _suspend(self, request: int, engine: int) -> None:
        """It runs no longer; what it has is kept in the table of requests."""
        self._requests.tokens[request] = self._steps - self._offsets[engine].pop(request)
        self.running[engine] -= 1
        self.kv[engine] -= self._requests.kv(request)

    def _depart(self, request: int) -> None:
        self._leaving.discard(request)
        del self._home[request]
        self._left(request)

    def _relieve(self) -> None:
        """Push the newest requests out where the next step's tokens find no room."""
        full = np.flatnonzero(self.kv + self._held + self.running > self._capacity)
        for engine in full.tolist():
            while self.kv[engine] + self._held[engine] + self.running[engine] > self._capacity[engine]:
                request = next(reversed(self._offsets[engine]))
                self._suspend(request, engine)
                self._queues[engine].appendleft(request)
                self._queued.add(engine)
                self._meter.pushed_out += 1

    def _admit(self) -> NDArray[np.int64]:
        """Let requests in that wait; tokens to prefill, for each engine."""
        fills = np.zeros_like(self.kv)
        for engine in sorted(self._queued):
            queue, capacity = self._queues[engine], int(self._capacity[engine])
            used, running = int(self.kv[engine] + self._held[engine]), int(self.running[engine])
            while queue:
                need = self._requests.kv(queue[0])
                fits = used + need <= _ADMIT_SHARE * capacity and used + need + running < capacity
                # An engine with nothing else in its KV cache takes any request, or it would wait for ever.
                if used and not fits:
                    break
                request = queue.popleft()
                fills[engine] += self._start(request, engine, need)
                used, running = used + need, running + 1
            if not queue:
                self._queued.discard(engine)
        return fills

    def _start(self, request: int, engine: int, need: int) -> int:
        """Tokens of prefill."""
        requests = self._requests
        self._offsets[engine][request] = self._steps - requests.tokens[request]
        self.running[engine] += 1
        self.kv[engine] += need
        heapq.heappush(self._stops, (self._offsets[engine][request] + requests.next_stop(request), request))
        cached, requests.cached[request] = requests.cached[request], False
        return 0 if cached else need

    # Time

    def _touch(self) -> None:
        """Something waits for the next boundary: end the plan there."""
        if not self._planned:
            self._wake(self)
            return
        steps = self._steps_until(self._agenda.now - self._began)
        if steps < self._planned:
            self._planned = steps
            self._schedule()

    def _steps_to_boundary(self) -> int:
        """Until a request stops or an engine's KV cache is full, at least 1."""
        while not self._stops_at(self._stops[0][1], self._stops[0][0]):
            heapq.heappop(self._stops)
        room = (self._capacity - self._held - self.kv) // np.maximum(self.running, 1)
        fit = int(room[self.running > 0].min())
        return max(1, min(self._stops[0][0] - self._steps, fit))

    def _stops_at(self, request: int, step: int) -> bool:
        """Whether this entry of the heap still holds."""
        engine = self._home.get(request)
        if engine is None or request not in self._offsets[engine]:
            return False
        return self._offsets[engine][request] + self._requests.next_stop(request) == step

    def _seconds(self, steps: int) -> float:
        """From the plan's begin until so many of its steps are done."""
        attention = self._cost.per_kv_token and self._cost.per_kv_token * envelope_sum(
            self.kv, self.running, steps
        )
        return self._standing + self._prefill + steps * self._base + attention

    def _done(self) -> int:
        """Steps of the plan that are done by now."""
        if not self._planned:
            return 0
        elapsed = self._agenda.now - self._began
        steps = self._steps_until(elapsed)
        # A step that ends right now is done; rounding may see it a little later.
        return steps if self._seconds(steps) <= elapsed + 1e-9 else steps - 1

    def _steps_until(self, elapsed: float) -> int:
        """The fewest steps of the plan, at least 1, that take so many seconds; at most all of it."""
        low, high = 1, self._planned
        while low < high:
            middle = (low + high) // 2
            if self._seconds(middle) >= elapsed - 1e-9:
                high = middle
            else:
                low = middle + 1
        return low
