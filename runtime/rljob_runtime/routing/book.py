"""Where every request is, and what every engine runs: the accounts that policies read.

Guarantees: a request is in one state at a time (held, waiting, on an engine, moving from one engine to
another); an engine's count is the number of requests on it and of places that it keeps for requests that
move to it, and never above its limit; what `Book` counts follows from the calls alone. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rljob_runtime.routing.requests import EngineShape, GroupRequest, MoveReason, RequestKey

Progress = Mapping[RequestKey, int]
"""Tokens that running requests have, response tokens alone."""


@dataclass(slots=True, eq=False)
class RequestState:
    """One response that is not complete."""

    key: RequestKey
    group: "GroupState"
    tokens: int = 0
    """Tokens of the response, as far as known."""
    begun: bool = False
    """Whether it is known to have generated anything where it runs: else its prefill may be to come."""
    engine: "EngineState | None" = None
    """Where it runs."""
    target: "EngineState | None" = None
    """The engine that keeps a place for it while it moves there."""
    moving: bool = False
    """Whether it was told to leave its engine, and has not left."""
    restart: bool = False
    """Whether its tokens are dropped when it has left its engine."""
    reason: MoveReason = "moved"
    """Why it was told to leave its engine; of no meaning while it was not."""
    moves: int = 0
    """How often it was moved."""

    @property
    def waits(self) -> bool:
        """Whether it is on no engine."""
        return self.engine is None

    @property
    def kv_tokens(self) -> int:
        """Tokens that it has in a KV cache, or needs there to go on."""
        return self.group.request.prompt_tokens + self.tokens


@dataclass(slots=True, eq=False)
class GroupState:
    """A group that is under way."""

    request: GroupRequest
    requests: dict[int, RequestState] = field(default_factory=dict)
    """Its responses that are not complete, by index."""
    finished: list[int] = field(default_factory=list)
    """Tokens of its complete responses, in the order in which they ended."""


@dataclass(slots=True, eq=False)
class EngineState:
    """An engine that has joined at some time."""

    number: int
    shape: EngineShape
    joined: bool = False
    """Whether it takes requests now."""
    gone: bool = False
    """Whether it is lost or removed, and is known only until nothing is on it any more."""
    running: dict[RequestKey, RequestState] = field(default_factory=dict)
    """What is on it, in the order of arrival; those that are told to leave are on it until they have left."""
    arriving: dict[RequestKey, RequestState] = field(default_factory=dict)
    """What moves to it, for which it keeps places."""
    kv_tokens: int = 0
    """Tokens of prompts and responses in its KV cache, as far as known."""

    @property
    def count(self) -> int:
        """Places taken."""
        return len(self.running) + len(self.arriving)

    @property
    def room(self) -> int:
        """Requests that it can begin now."""
        left = self.shape.limit - len(self.running) - len(self.arriving)
        return left if self.joined and left > 0 else 0

    @property
    def fill_seconds(self) -> float:
        """Seconds until all that is on it, and all that moves to it, has its KV there, as far as known: all
        others stand still for it."""
        cost = self.shape.cost
        here = sum(
            request.kv_tokens * (cost.moved if request.moves else cost.per_prefill_token)
            for request in self.running.values()
            if not request.begun
        )
        return here + cost.moved * sum(request.kv_tokens for request in self.arriving.values())

    @property
    def movable(self) -> list[RequestState]:
        """What runs on it and was not told to leave."""
        return [request for request in self.running.values() if not request.moving]


class Book:
    """See the module's guarantees. Unknown requests and engines are a `KeyError`: a fault of the caller."""

    def __init__(self) -> None:
        self.engines: dict[int, EngineState] = {}
        """By number, those that pause as well; without those that are gone, once they are empty."""
        self.groups: dict[int, GroupState] = {}
        self.waiting = 0
        """Requests that are on no engine."""
        self.rooms: dict[str, int] = {}
        """Requests that the engines of each pool together can begin now."""

    @property
    def room(self) -> int:
        """Requests that all engines together can begin now."""
        return sum(self.rooms.values())

    def request(self, key: RequestKey) -> RequestState:
        return self.groups[key.uid].requests[key.sample]

    def _known(self, key: RequestKey) -> RequestState | None:
        group = self.groups.get(key.uid)
        return None if group is None else group.requests.get(key.sample)

    def members(self) -> Iterator[EngineState]:
        """The engines that take requests, or will again."""
        return (engine for engine in self.engines.values() if not engine.gone)

    # Engines

    def join(self, number: int, shape: EngineShape) -> EngineState:
        """An engine takes requests, for the first time or again."""
        engine = self.engines.get(number)
        if engine is None:
            engine = self.engines[number] = EngineState(number, shape)
        self._add_room(engine, -engine.room)
        engine.shape, engine.joined = shape, True
        self._add_room(engine, engine.room)
        return engine

    def leave(self, number: int) -> None:
        """An engine takes no requests until it joins again."""
        engine = self.engines[number]
        self._add_room(engine, -engine.room)
        engine.joined = False

    def remove(self, number: int) -> None:
        """An engine is gone for good."""
        self.leave(number)
        engine = self.engines[number]
        engine.gone = True
        self._forget_if_empty(engine)

    # Requests

    def add(self, group: GroupRequest) -> GroupState:
        """A group is under way; its requests wait. Raises `ValueError` where it is already."""
        if group.uid in self.groups:
            raise ValueError(f"group {group.uid} is under way already")
        state = self.groups[group.uid] = GroupState(group)
        for index in range(group.samples):
            state.requests[index] = RequestState(RequestKey(group.uid, index), state)
        self.waiting += group.samples
        return state

    def place(self, request: RequestState, engine: EngineState) -> None:
        """Put a request that waits on an engine that has room, or keeps a place for it."""
        assert request.waits
        self.unkeep(request)
        assert engine.room > 0, "an engine never runs more than its limit"
        self._add_room(engine, -1)
        engine.running[request.key] = request
        engine.kv_tokens += request.kv_tokens
        request.engine, request.begun = engine, False
        self.waiting -= 1

    def progress(self, tokens: Progress) -> list[RequestState]:
        """Requests have so many tokens. Returns those that run and have more than was known; the others are
        passed over: such news is late, not wrong."""
        grown: list[RequestState] = []
        engine: EngineState | None = None
        beside: dict[RequestKey, RequestState] = {}
        for key, count in tokens.items():
            request = beside.get(key)
            if request is None or engine is None:
                request = self._known(key)
                if request is None or request.engine is None:
                    continue
                # A report is mostly of one engine: the others are found among what it runs.
                engine = request.engine
                beside = engine.running
            if count > request.tokens:
                engine.kv_tokens += count - request.tokens
                request.tokens, request.begun = count, True
                grown.append(request)
        return grown

    def move(
        self,
        request: RequestState,
        target: EngineState | None,
        restart: bool,
        reason: MoveReason = "moved",
    ) -> None:
        """A request that runs is told to leave; `target` keeps a place for it."""
        assert request.engine is not None and not request.moving
        request.moving, request.restart, request.reason = True, restart, reason
        if target is not None:
            assert target.room > 0
            self._add_room(target, -1)
            target.arriving[request.key] = request
            request.target = target

    def interrupted(self, request: RequestState, tokens: int) -> EngineState:
        """A request left its engine, with so many tokens, and is not complete. Returns the engine."""
        engine = self._take_off(request)
        request.tokens = 0 if request.restart else tokens
        request.moves += request.moving
        request.moving = request.restart = False
        self.waiting += 1
        return engine

    def finished(self, request: RequestState, tokens: int) -> EngineState:
        """A request is complete, with so many tokens. Returns the engine that it ran on."""
        engine = self._take_off(request)
        self.unkeep(request)
        group = request.group
        del group.requests[request.key.sample]
        group.finished.append(tokens)
        if not group.requests:
            del self.groups[group.request.uid]
        return engine

    def cancel(self, uid: int) -> list[EngineState]:
        """A group is given up. Returns the engines that its requests were on, or had places on."""
        touched = []
        for request in self.groups.pop(uid).requests.values():
            if request.engine is not None:
                touched.append(self._take_off(request))
            else:
                self.waiting -= 1
            if request.target is not None:
                touched.append(request.target)
                self.unkeep(request)
        return touched

    def unkeep(self, request: RequestState) -> None:
        """Give up the place that is kept for a request, where there is one."""
        target = request.target
        if target is not None:
            request.target = None
            self._add_room(target, -target.room)
            del target.arriving[request.key]
            self._add_room(target, target.room)
            self._forget_if_empty(target)

    def check(self) -> None:
        """Count everything anew and compare: for tests."""
        requests = [request for group in self.groups.values() for request in group.requests.values()]
        assert self.waiting == sum(request.waits for request in requests)
        for pool, room in self.rooms.items():
            in_it = [engine for engine in self.engines.values() if engine.shape.pool == pool]
            assert room == sum(engine.room for engine in in_it)
        for engine in self.engines.values():
            on_it = [request for request in requests if request.engine is engine]
            assert {request.key for request in on_it} == set(engine.running)
            arriving = {request.key for request in requests if request.target is engine}
            assert set(engine.arriving) == arriving
            assert engine.kv_tokens == sum(request.kv_tokens for request in on_it)
            assert engine.count <= engine.shape.limit or not engine.joined

    # Accounts

    def _add_room(self, engine: EngineState, change: int) -> None:
        self.rooms[engine.shape.pool] = self.rooms.get(engine.shape.pool, 0) + change

    def _take_off(self, request: RequestState) -> EngineState:
        engine = request.engine
        assert engine is not None
        before = engine.room
        del engine.running[request.key]
        engine.kv_tokens -= request.kv_tokens
        self._add_room(engine, engine.room - before)
        request.engine = None
        self._forget_if_empty(engine)
        return engine

    def _forget_if_empty(self, engine: EngineState) -> None:
        if engine.gone and engine.count == 0:
            self.engines.pop(engine.number, None)
