"""A rollouter with engines that note what they are given, for virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from rljob_api.rollout import Speculation
from rljob_runtime.data.forced_lengths import ForcedLengths
from rljob_runtime.engines.fake import FakeEngine, FakeTiming
from rljob_runtime.engines.protocol import FinishedText, Request
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.responses import Response
from rljob_runtime.groups.staleness import Bound, StalenessController
from rljob_runtime.groups.state import RolloutSettings
from rljob_runtime.rewards import Score
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.rollouter import Rollouter
from rljob_runtime.routing.policy import Policy
from rljob_runtime.samples import Generation, Group, Prompt
from rljob_runtime.trace.record.event_log import EventLog


class NotedEvents(EventLog):
    """Keeps events in memory."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(None, 0, "driver", "driver", clock=clock)
        self.noted: list[tuple[str, float, float, dict[str, Any]]] = []

    def add(self, event: str, step: int, start: float, duration: float, **extra: Any) -> None:
        self.noted.append((event, start, duration, extra))


class Heard(NamedTuple):
    """Finished responses to one prompt that an engine was told of."""

    at: float
    uid: int
    lengths: tuple[int, ...]
    """Tokens of each."""
    given: int
    """Requests that it had been given by then."""


class WatchedEngine(FakeEngine):
    """One token a second; notes what it is given and what is aborted."""

    def __init__(self, name: str, limit: int, length: int) -> None:
        super().__init__(name, lambda request: length, limit, FakeTiming(step_seconds=1.0))
        self.given: list[Request] = []
        self.aborted: list[str] = []
        self.heard: list[Heard] = []

    def learn(self, texts: Sequence[FinishedText]) -> None:
        now, prompts = asyncio.get_running_loop().time(), {prompt for prompt, _ in texts}
        (uid,) = {int(np.frombuffer(prompt, np.int32)[0]) for prompt in prompts}
        lengths = tuple(len(response) // 4 for _, response in texts)
        self.heard.append(Heard(now, uid, lengths, len(self.given)))

    async def submit(self, request: Request) -> Generation:
        self.given.append(request)
        return await super().submit(request)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        await super().abort(request_id)


class WatchedRollout:
    """A rollouter with engines that have joined; `groups` are those that it put."""

    def __init__(
        self,
        limits: Sequence[int] = (2,),
        samples: int = 2,
        length: int = 10,
        most_tokens: int = 100,
        admitted: int = 100,
        prompts: int = 100,
        policy: Policy | None = None,
        pools: Sequence[str] = ("fast",),
        forced: ForcedLengths | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.length = length
        self.events = NotedEvents(loop.time)
        self.groups: list[Group] = []
        self.fetched: list[int] = []
        self.lost: list[str] = []
        self.scores: Callable[[Prompt, Sequence[Response]], Awaitable[Any]] = self._ones
        self.put: Callable[[Group], Awaitable[None]] = self.keep
        self.pool = EnginePool(loop.time, lambda slot, why: self.lost.append(why), policy)
        self.controller = StalenessController(Bound(0, admitted), 1000)
        self.ledger = Ledger()
        self.rollouter = Rollouter(
            RolloutSettings(samples, most_tokens, 0, forced, speculation=speculation), self.pool,
            self.controller, self._prompt, self.ledger, iter(range(prompts)), self._score, self._put,
            self.events,
        )  # fmt: skip
        self.slots = [self.add(limit, pool) for limit, pool in zip(limits, cycle(pools), strict=False)]
        self.running: asyncio.Task[None] | None = None

    def add(self, limit: int, pool: str = "fast") -> EngineSlot:
        engine = WatchedEngine(f"engine-{len(self.pool.slots)}", limit, self.length)
        engine._started = True
        slot = EngineSlot(engine, pool, limit, self.events)
        self.pool.add(slot)
        self.pool.join(slot)
        return slot

    @property
    def engines(self) -> list[Any]:
        return [slot.engine for slot in self.slots]

    @property
    def dispatched(self) -> int:
        return self.rollouter.counts.dispatched

    async def __aenter__(self) -> "WatchedRollout":
        self.running = asyncio.ensure_future(self.rollouter.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.running is not None
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        assert [slot.running for slot in self.slots] == [0] * len(self.slots), "every request was released"
        assert [slot.requests for slot in self.slots] == [{}] * len(self.slots), "none is taken for running"

    def _prompt(self, uid: int) -> Prompt:
        self.fetched.append(uid)
        return Prompt(uid=uid, epoch=0, row=uid, tokens=np.full(4, uid, np.int32))

    async def _ones(self, prompt: Prompt, responses: Sequence[Response]) -> list[Score]:
        return [Score(1.0) for _ in responses]

    async def _score(self, prompt: Prompt, responses: Sequence[Response]) -> Any:
        return await self.scores(prompt, responses)

    async def keep(self, group: Group) -> None:
        self.groups.append(group)

    async def _put(self, group: Group) -> None:
        await self.put(group)
