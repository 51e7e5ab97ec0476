"""The state machine behind every routing decision: it is told what happens and says which request runs where.

The rollouter's engine pool and the simulator drive the same object. Guarantees: a request is placed only
while it waits, on an engine that has joined and has room, or keeps a place for it; a request is told to move
only while it runs, once until it has left its engine; equal histories give equal decisions. Pure: time is
passed in.
"""

from collections.abc import Iterable

from rljob_runtime.routing.book import Book, EngineState, Progress, RequestState
from rljob_runtime.routing.lanes import Lanes
from rljob_runtime.routing.policy import Entry, Policy
from rljob_runtime.routing.requests import Action, EngineShape, GroupRequest, Move, Place, RequestKey


class Router:
    """See the module's guarantees."""

    def __init__(self, policy: Policy) -> None:
        self.book = Book()
        self.policy = policy
        self._lanes = Lanes()
        self._returning: dict[RequestKey, RequestState] = {}
        """Requests that have left their engine for one that keeps a place for them."""

    # Engines

    def join(self, engine: int, shape: EngineShape) -> None:
        """An engine takes requests from now on."""
        new = engine not in self.book.engines
        self._load_changed(self.book.join(engine, shape))
        if new:
            self._enter(self.policy.engines_changed(self.book))

    def leave(self, engine: int) -> None:
        """An engine takes no requests until it joins again. What it runs stays on it until `interrupted`,
        `finished` or `cancel` says otherwise."""
        self.book.leave(engine)
        self._load_changed(self.book.engines[engine])

    def remove(self, engine: int) -> None:
        """An engine is gone. What it ran is told by `interrupted`, as after any other interruption. Nothing
        where it never joined."""
        state = self.book.engines.get(engine)
        if state is not None and not state.gone:
            self.book.remove(engine)
            self.policy.load_changed(state)
            self._lanes.engine(state, (), None)
            self._enter(self.policy.engines_changed(self.book))

    # Requests

    def dispatch(self, group: GroupRequest, now: float) -> None:
        """A group is to be generated. Raises `ValueError` where it is under way already."""
        state = self.book.add(group)
        changed = self.policy.dispatched(state, self.book, now)
        self._enter(state.requests.values())
        self._enter(changed)

    def progressed(self, tokens: Progress, now: float) -> None:
        """Running requests have so many response tokens. Those that do not run, and numbers that are older
        than what is known, are passed over: such news is late, not wrong."""
        requests = self.book.progress(tokens)
        engine: EngineState | None = None
        for request in requests:
            # Those of one engine come one after the other, mostly; to be told twice changes nothing.
            if request.engine is not None and request.engine is not engine:
                engine = request.engine
                self._load_changed(engine)
        self._enter(self.policy.progressed(requests, self.book, now))

    def interrupted(self, key: RequestKey, tokens: int, now: float) -> bool:
        """A request left its engine unfinished, with so many tokens of its response: it was told to move, a
        weight update took it out, or the engine is gone. It waits again. Returns whether it begins anew: its
        tokens are to be dropped."""
        request = self.book.request(key)
        restart = request.restart
        self._load_changed(self.book.interrupted(request, tokens))
        if request.target is not None:
            self._returning[key] = request
        else:
            self._enter([request])
        return restart

    def finished(self, key: RequestKey, tokens: int, now: float) -> None:
        """A response is complete, with so many tokens."""
        request = self.book.request(key)
        target = request.target
        self._load_changed(self.book.finished(request, tokens))
        if target is not None:
            self._load_changed(target)
        self._enter(self.policy.finished(request, self.book, now))
        if not request.group.requests:
            self._enter(self.policy.cancelled(request.group, self.book))

    def cancel(self, uid: int) -> None:
        """A group is given up: its requests have left, or are about to leave, their engines. Nothing where it
        is not under way."""
        group = self.book.groups.get(uid)
        if group is None:
            return
        for request in group.requests.values():
            self._lanes.put(request, None)
            self._returning.pop(request.key, None)
        for engine in self.book.cancel(uid):
            self._load_changed(engine)
        self._enter(self.policy.cancelled(group, self.book))

    def take_out(self, key: RequestKey) -> bool:
        """A request is to leave its engine, which does nothing for it, and to wait again; `interrupted`
        follows. False where it is on none, or was told to leave already."""
        return self._begin_move(Move(key, None, reason="stuck"))

    # Decisions

    def wants_group(self, awaited: bool = False) -> bool:
        """Whether another group is to be dispatched, as far as engines go: its first response would be placed
        at once. `awaited`: the next training step cannot do without one more, so that nothing is gained by
        dispatching it later, and a policy that orders what waits wants to know of it."""
        room = self.policy.newcomer_room(self.book)
        if self.policy.eager:
            # A group that waits is no younger for it: its deadline is that of the version it is dispatched
            # at, and a step waits for it when it has come.
            before = self._lanes.probes if self.policy.probes_first else len(self._lanes)
            return awaited or room > before
        return room > 0 and len(self._lanes) == 0

    def decide(self, now: float) -> list[Action]:
        """What is to be done now; all of it, in this order. To be called after every change."""
        self._look_again(now)
        actions: list[Action] = self._arrivals()
        self._place_waiting(actions)
        self._enter(self.policy.settled(self.book, now))
        self._look_again(now)
        self._place_waiting(actions)
        actions += [move for move in self.policy.moves(self.book, now) if self._begin_move(move)]
        return actions

    def _look_again(self, now: float) -> None:
        """Ask the policy what has changed for another reason than what it was told."""
        for engine in self.policy.rescored(self.book, now):
            self._load_changed(engine)
        self._enter(self.policy.reentered(self.book, now))

    def _place_waiting(self, actions: list[Action]) -> None:
        """Place what waits and has room."""
        while (chosen := self._lanes.next()) is not None:
            request, number = chosen
            self._lanes.put(request, None)
            actions.append(self._place(request, self.book.engines[number]))

    def _arrivals(self) -> list[Action]:
        """Place what has left its engine on the engine that keeps a place for it; where that one takes none
        any more, it waits as others do."""
        actions: list[Action] = []
        returning, self._returning = self._returning, {}
        for request in returning.values():
            target = request.target
            if target is not None and target.joined:
                actions.append(self._place(request, target))
            else:
                self.book.unkeep(request)
                self._enter([request])
        return actions

    def _place(self, request: RequestState, engine: EngineState) -> Place:
        self.book.place(request, engine)
        self._load_changed(engine)
        return Place(request.key, engine.number)

    def _begin_move(self, move: Move) -> bool:
        request = self.book.request(move.request)
        target = None if move.engine is None else self.book.engines.get(move.engine)
        full = move.engine is not None and (target is None or target.room == 0 or target is request.engine)
        if request.engine is None or request.moving or full:
            return False
        self.book.move(request, target, move.restart, move.reason)
        if target is not None:
            self._load_changed(target)
        return True

    # Lanes

    def _load_changed(self, engine: EngineState) -> None:
        if not engine.gone:
            self.policy.load_changed(engine)
            score = self.policy.score(engine) if engine.room else None
            self._lanes.engine(engine, self.policy.serves(engine, self.book), score)

    def _enter(self, requests: Iterable[RequestState]) -> None:
        """Put those of these requests that wait where the policy has them wait."""
        for request in requests:
            if request.waits and request.key not in self._returning:
                entry: Entry | None = self.policy.entry(request, self.book)
                self._lanes.put(request, entry)
