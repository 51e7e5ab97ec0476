"""Schedulers that others published, as baselines for the simulator: no part of the product.

`Static` deals responses to engines before anything runs, as the ranks of one vLLM instance get their share of
a batch. `TwoPhaseRebalance` adds what Huawei's CANN recipes publish as rollout rebalance
(`docs/features/rollout_rebalance.md` there), written anew from that description: every 1,000 decode steps
requests that wait go to engines with room; where nothing waits and the mean load fits a smaller captured
graph, the newest requests of engines above it move, with their KV, to engines below it.

`Stealing` is what a published method of two pools is to be compared with on the same engines: no pools, the
responses to a prompt on different engines, and an engine that will be done early takes what runs on others.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from rljob_runtime.routing.book import Book, GroupState, RequestState
from rljob_runtime.routing.estimates import Estimates
from rljob_runtime.routing.fixed import Interleaved
from rljob_runtime.routing.lengths import Lengths
from rljob_runtime.routing.levelling import level
from rljob_runtime.routing.requests import Action, EngineShape, GroupRequest, Move, Place, RequestKey

EngineOf = Callable[[RequestKey], int]
Order = Callable[[RequestKey], tuple[int, int]]


def adjacent(groups: int, samples: int, engines: int) -> EngineOf:
    """Responses in order of their prompts, cut into equal shares: siblings lie side by side."""
    return lambda key: (key.uid * samples + key.sample) * engines // (groups * samples)


def interleaved(groups: int, samples: int, engines: int) -> EngineOf:
    """First response 0 of every prompt, then response 1: siblings lie on different engines."""
    return lambda key: (key.sample * groups + key.uid) * engines // (groups * samples)


def by_prompt(key: RequestKey) -> tuple[int, int]:
    """All responses to a prompt before those to the next one."""
    return key.uid, key.sample


class Static:
    """Each engine has a queue of its own, filled before anything runs."""

    def __init__(self, engine_of: EngineOf, key_order: Order = by_prompt) -> None:
        """`key_order`: in which order an engine takes its responses."""
        self._engine_of, self._key_order = engine_of, key_order
        self.shapes: list[EngineShape] = []
        self.queues: list[deque[RequestKey]] = []
        self.running: list[dict[RequestKey, None]] = []
        """Of each engine, oldest first."""
        self.home: dict[RequestKey, int] = {}
        self.tokens: dict[RequestKey, int] = {}
        self.prompts: dict[int, int] = {}
        self._arrived: list[RequestKey] = []

    def join(self, engine: int, shape: EngineShape) -> None:
        assert engine == len(self.shapes)
        self.shapes.append(shape)
        self.queues.append(deque())
        self.running.append({})

    def dispatch(self, group: GroupRequest, now: float) -> None:
        self.prompts[group.uid] = group.prompt_tokens
        self._arrived += [RequestKey(group.uid, index) for index in range(group.samples)]

    def progressed(self, tokens: Mapping[RequestKey, int], now: float) -> None:
        self.tokens |= tokens

    def interrupted(self, key: RequestKey, tokens: int, now: float) -> bool:
        raise AssertionError("nothing moves here")

    def finished(self, key: RequestKey, tokens: int, now: float) -> None:
        del self.running[self.home.pop(key)][key]
        self.tokens.pop(key, None)

    def wants_group(self, awaited: bool = False) -> bool:
        return any(
            len(running) < shape.limit for running, shape in zip(self.running, self.shapes, strict=True)
        )

    def decide(self, now: float) -> Sequence[Action]:
        for key in sorted(self._arrived, key=self._key_order):
            self.queues[self._engine_of(key)].append(key)
        self._arrived.clear()
        return [place for engine in range(len(self.shapes)) for place in self.fill(engine)]

    def fill(self, engine: int) -> list[Action]:
        """What waits goes in as far as there is room."""
        placed: list[Action] = []
        while self.queues[engine] and len(self.running[engine]) < self.shapes[engine].limit:
            key = self.queues[engine].popleft()
            self.running[engine][key] = None
            self.home[key] = engine
            placed.append(Place(key, engine))
        return placed


def by_sample(key: RequestKey) -> tuple[int, int]:
    """The order of an interleaved batch."""
    return (key.sample, key.uid)


class TwoPhaseRebalance(Static):
    """`Static`, and from time to time work moves to other engines; see the module."""

    def __init__(self, engine_of: EngineOf, key_order: Order = by_prompt, every_steps: int = 1000) -> None:
        """`every_steps`: decode steps from one look to the next. The engines run in lockstep, so that every
        running response grows by one token a step."""
        super().__init__(engine_of, key_order)
        self._every = every_steps
        self._steps = 0
        """Since the last look."""
        self._targets: dict[RequestKey, int] = {}
        """Where requests go that were told to move."""
        self._arriving: list[RequestKey] = []
        self.looks = 0

    def progressed(self, tokens: Mapping[RequestKey, int], now: float) -> None:
        self._steps += max((count - self.tokens.get(key, count) for key, count in tokens.items()), default=0)
        super().progressed(tokens, now)

    def interrupted(self, key: RequestKey, tokens: int, now: float) -> bool:
        del self.running[self.home.pop(key)][key]
        self.tokens[key] = tokens
        self._arriving.append(key)
        return False

    def finished(self, key: RequestKey, tokens: int, now: float) -> None:
        super().finished(key, tokens, now)
        self._targets.pop(key, None)

    def decide(self, now: float) -> Sequence[Action]:
        actions: list[Action] = []
        for key in self._arriving:
            engine = self._targets.pop(key)
            self.running[engine][key] = None
            self.home[key] = engine
            actions.append(Place(key, engine))
        self._arriving.clear()
        if self._steps >= self._every:
            self._steps = 0
            self.looks += 1
            self._spread_waiting()
            if not any(self.queues):
                actions += self._lower_the_gear()
        return [*actions, *super().decide(now)]

    def _target(self) -> int:
        """The smallest captured graph that the mean load fits, if it is smaller than the one in use."""
        loads = [len(run) + len(queue) for run, queue in zip(self.running, self.queues, strict=True)]
        cost, limit = self.shapes[0].cost, self.shapes[0].limit
        most = min(cost.gear(max(loads)), limit)
        mean = sum(loads) / len(loads)
        return next((gear for gear in cost.gears if mean <= gear < most), most)

    def _usage(self, engine: int) -> float:
        """Share of the KV cache in use."""
        held = sum(self.prompts[key.uid] + self.tokens.get(key, 0) for key in self.running[engine])
        return held / (self.shapes[engine].kv_tokens or 1 << 60)

    def _rooms(self, target: int) -> dict[int, int]:
        """Requests that each engine can take: none waits there, and its KV cache is not nearly full."""
        rooms = {}
        for engine, running in enumerate(self.running):
            usage = self._usage(engine)
            if self.queues[engine] or usage > 0.8 or len(running) >= target:
                continue
            fit = int(len(running) * (1 - usage) / usage) if usage > 0 else target
            rooms[engine] = min(target - len(running), fit)
        return rooms

    def _spread_waiting(self) -> None:
        """The first phase: what waits, and has no KV, goes to the emptiest engines."""
        rooms = self._rooms(self._target())
        loads = {engine: len(self.running[engine]) for engine in rooms}
        for donor in self.queues:
            while donor and (open_ := [engine for engine, room in rooms.items() if room > 0]):
                engine = min(open_, key=lambda engine: loads[engine])
                self.queues[engine].append(donor.pop())
                rooms[engine] -= 1
                loads[engine] += 1

    def _lower_the_gear(self) -> list[Action]:
        """The second phase: only where every engine can come down to the smaller graph."""
        target = self._target()
        if target >= self.shapes[0].cost.gear(max(map(len, self.running))):
            return []
        rooms = self._rooms(target)
        surplus = {engine: len(run) - target for engine, run in enumerate(self.running) if len(run) > target}
        if sum(surplus.values()) > sum(rooms.values()):
            return []
        moves: list[Action] = []
        for donor, count in surplus.items():
            newest = [key for key in reversed(self.running[donor]) if key not in self._targets]
            for key in newest[:count]:
                engine = max(rooms, key=lambda engine: rooms[engine])
                rooms[engine] -= 1
                self._targets[key] = engine
                moves.append(Move(key, engine))
        return moves


class Stealing(Interleaved):
    """Interleaved; when nothing waits, engines take over what runs on others, by adaptive routing's estimates
    and levelling. What waits for one engine is not taken by another."""

    def __init__(self, groups_per_step: int, longest: int, every_seconds: float = 1.0) -> None:
        """`longest`: most tokens of a response; `every_seconds`: least time from one look to the next."""
        super().__init__(groups_per_step)
        self._estimates = Estimates(Lengths(longest))
        self._every = every_seconds
        self._next = 0.0

    def dispatched(self, group: GroupState, book: Book, now: float) -> Iterable[RequestState]:
        self._estimates.began(group, len(book.groups))
        return ()

    def progressed(self, requests: Iterable[RequestState], book: Book, now: float) -> Iterable[RequestState]:
        self._estimates.outgrown(requests)
        return ()

    def finished(self, request: RequestState, book: Book, now: float) -> Iterable[RequestState]:
        self._estimates.finished(request.group)
        return ()

    def cancelled(self, group: GroupState, book: Book) -> Iterable[RequestState]:
        self._estimates.forget(group)
        return ()

    def moves(self, book: Book, now: float) -> Iterable[Move]:
        if now < self._next or book.waiting or not self._estimates.lengths.known:
            return ()
        self._next = now + self._every
        self._estimates.fit_hazards()
        for group in book.groups.values():
            self._estimates.renew(group)
        engines = [engine for engine in book.members() if engine.joined]
        return level(engines, self._estimates.remaining)
