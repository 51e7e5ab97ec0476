"""Responses that move between live engines by a script, through the pool, router, responder and weight update
of jobs."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np

from rljob_runtime.engines.protocol import Request, WeightRef
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.groups.responses import Response, response_of
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.responder import Responder, Wanted
from rljob_runtime.rollout.weight_sync import EngineSync
from rljob_runtime.routing.book import Book, EngineState
from rljob_runtime.routing.policy import Lane, Policy
from rljob_runtime.routing.requests import GroupRequest, Move, RequestKey
from rljob_runtime.samples import Generation, Prompt
from tests.support.runtime.tiny_models import request
from tests.support.simulated.watched_rollout import NotedEvents

SECONDS = 120.0
"""Within this each step of a script happens, and each part of a weight update."""
PROMPT = 130
"""Tokens of each prompt: more than a block of vLLM's KV cache on CPUs, which a second request with them would
find there."""


@dataclass(frozen=True)
class Stay:
    """What an engine was given, and what it made of it."""

    engine: str
    request: Request
    got: Generation


class NotingEngine(VllmEngine):
    """Notes each stay in `stays`, which jobs replace by their own."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.stays: list[Stay] = []

    async def submit(self, request: Request) -> Generation:
        got = await super().submit(request)
        self.stays.append(Stay(self.name, request, got))
        return got


@dataclass(frozen=True)
class GoTo:
    """The responses that move go to this engine."""

    engine: str


@dataclass(frozen=True)
class Update:
    """Engines, each named by a letter, get a version while they run requests; they all stand still meanwhile,
    so that nothing that moves ends before the next step."""

    engines: str
    version: int
    """Counted from the oldest of the job's."""


@dataclass(frozen=True)
class GoToInPause:
    """The responses that move leave the engines while these stand still for an update, which goes on once
    they generate elsewhere."""

    update: Update
    engine: str


Step: TypeAlias = GoTo | Update | GoToInPause


class ByScript(Policy):
    """All begins on the first engine, and moves when it is told to."""

    def __init__(self) -> None:
        self.wanted: list[Move] = []

    def serves(self, engine: EngineState, book: Book) -> tuple[Lane, ...]:
        return ("any",) if engine.number == 0 else ()

    def moves(self, book: Book, now: float) -> list[Move]:
        wanted, self.wanted = self.wanted, []
        return wanted


class MovingJob:
    """Responses on live engines, some of which move; for one run."""

    def __init__(
        self,
        engines: Sequence[NotingEngine],
        versions: Sequence[WeightRef],
        limit: int,
        policy: Policy | None = None,
    ) -> None:
        """`versions`: those of the job, oldest first. `policy`: moves responses by itself."""
        self.events = NotedEvents(time.time)
        self.counts = GroupCounts()
        self.lost: list[str] = []
        self.stays: list[Stay] = []
        """All of them, in the order in which they ended."""
        self._versions = versions
        self._changed = asyncio.Event()
        self._script = ByScript()
        self.pool = EnginePool(
            time.monotonic, lambda slot, why: self.lost.append(why), policy or self._script
        )
        self._sync = EngineSync(self.pool, SECONDS, SECONDS)
        self._responder = Responder(self.pool, self.events, lambda: self.counts)
        self.slots: dict[str, EngineSlot] = {}
        for engine in engines:
            engine.stays = self.stays
            slot = EngineSlot(engine, "fast", limit, self.events, engine.version)
            self.slots[engine.name] = slot
            self.pool.add(slot)
            self.pool.join(slot)
            engine.on_progress(partial(self.pool.progressed, slot), 0.01)
        self.pool.listen(self._look)

    async def run(
        self,
        moving: Sequence[Prompt],
        others: Sequence[Prompt],
        tokens: int,
        steps: Sequence[Step],
        each: int,
    ) -> list[Response]:
        """The responses, of so many `tokens`, to the prompts that move and to the others. Each of `steps`
        comes when the moving ones have `each` tokens more on the engine where they are."""
        keys = [key_of(prompt) for prompt in moving]
        async with asyncio.TaskGroup() as group:
            tasks = self._begin(group, [*moving, *others], tokens)
            where = next(iter(self.slots))
            for step in steps:
                await self._generated(keys, where, each)
                where = await self._carry_out(step, keys, where)
        return [task.result() for task in tasks]

    async def run_with_early_moves(
        self, prompts: Sequence[Prompt], tokens: int, engine: str
    ) -> list[Response]:
        """The responses to prompts that are begun one by one. Each is told to go to this engine some turns of
        the loop later, one more than the one before it: some of them are not submitted yet by then, or are
        half-way into their first engine."""
        tasks = []
        async with asyncio.TaskGroup() as group:
            for turns, prompt in enumerate(prompts):
                tasks += self._begin(group, [prompt], tokens)
                for _ in range(turns):
                    await asyncio.sleep(0)
                self._move([key_of(prompt)], engine)
        return [task.result() for task in tasks]

    async def run_with_updates(
        self, prompts: Sequence[Prompt], tokens: int, updates: Sequence[Update]
    ) -> list[Response]:
        """The responses, of so many `tokens`, to prompts, while the updates come one after the other, spread
        over them."""
        share = len(prompts) * tokens / (len(updates) + 1)
        async with asyncio.TaskGroup() as group:
            tasks = self._begin(group, prompts, tokens)
            for number, update in enumerate(updates, 1):
                await self._until(partial(self._have_generated, number * share))
                await self._load(update, await self._pause(update))
        return [task.result() for task in tasks]

    def stays_of(self, uid: int) -> list[Stay]:
        """Of a prompt's response."""
        return [stay for stay in self.stays if response_of(stay.request.request_id) == f"{uid}.0"]

    def _look(self) -> None:
        """As the rollouter does, which carries out what the router decides after every change."""
        self.pool.decide()
        self._changed.set()

    def _begin(
        self, group: asyncio.TaskGroup, prompts: Sequence[Prompt], tokens: int
    ) -> list["asyncio.Task[Response]"]:
        for prompt in prompts:
            self.pool.dispatch(GroupRequest(prompt.uid, prompt.row, len(prompt.tokens), 1))
        self.pool.decide()
        return [group.create_task(self._respond(prompt, tokens)) for prompt in prompts]

    async def _respond(self, prompt: Prompt, tokens: int) -> Response:
        return await self._responder.respond(prompt, 0, Wanted(tokens, seed=prompt.uid, exact=True))

    async def _carry_out(self, step: Step, keys: Sequence[RequestKey], where: str) -> str:
        """Returns where the moving ones are then."""
        match step:
            case Update():
                slots = await self._pause(step)
                await self._load(step, slots)
                return where
            case GoTo(engine):
                self._move(keys, engine)
            case GoToInPause(update, engine):
                slots = await self._pause(update)
                self._move(keys, engine)
                await self._generated(keys, engine, 1)
                await self._load(update, slots)
        return engine

    async def _pause(self, update: Update) -> list[EngineSlot]:
        slots = [self.slots[engine] for engine in update.engines]
        await asyncio.gather(*(self._sync.pause(slot, "keep") for slot in slots))
        return slots

    async def _load(self, update: Update, slots: Sequence[EngineSlot]) -> None:
        ref = self._versions[update.version]
        await asyncio.gather(*(self._sync.load(slot, ref) for slot in slots))
        await asyncio.gather(*(self._sync.resume(slot) for slot in slots))
        for slot in slots:
            self.pool.join(slot)

    def _move(self, keys: Sequence[RequestKey], engine: str) -> None:
        self._script.wanted = [Move(key, self.slots[engine].number) for key in keys]
        self.pool.decide()

    async def _generated(self, keys: Sequence[RequestKey], engine: str, tokens: int) -> None:
        """Return when all these have so many tokens of this stay on an engine, at least."""
        slot = self.slots[engine]
        await self._until(lambda: min(self._tokens_here(key, slot) for key in keys) >= tokens)

    def _have_generated(self, tokens: float) -> bool:
        """Whether stays that have ended made so many."""
        return self.counts.fast_tokens >= tokens

    async def _until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not reached():
                assert not self.lost, self.lost
                self._changed.clear()
                await self._changed.wait()

    def _tokens_here(self, key: RequestKey, slot: EngineSlot) -> int:
        assert key.uid in self.pool.router.book.groups, f"{key} ended before the script did"
        if (name := slot.has(key)) is None:
            return 0
        return self.pool.router.book.request(key).tokens - slot.requests[name][1]


def key_of(prompt: Prompt) -> RequestKey:
    """Its one response."""
    return RequestKey(prompt.uid, 0)


def prompts(first: int, count: int) -> list[Prompt]:
    """Random ones with uids from `first` on."""
    return [
        Prompt(uid=uid, epoch=0, row=uid, tokens=request("", uid, PROMPT).tokens)
        for uid in range(first, first + count)
    ]


def whole(prompt: Prompt, response: Response) -> tuple[Request, Generation]:
    """A response as if one engine had generated it."""
    name = f"{prompt.uid}"
    got = Generation(name, response.tokens, response.log_probs, response.spans, response.finish)
    return Request(name, prompt.tokens, len(response.tokens), prompt.uid), got


def continued(asked: Request, got: Generation) -> Request:
    """A request as `asked`, which goes on from what was generated."""
    return msgspec.structs.replace(
        asked, tokens=np.concatenate([asked.tokens, got.tokens]), generated=len(got.tokens)
    )
