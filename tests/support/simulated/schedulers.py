"""Schedulers for tests of the simulator: what they decide is written down, or random."""

import random
from collections import deque
from collections.abc import Mapping, Sequence

from rljob_runtime.routing.requests import Action, EngineShape, GroupRequest, Move, Place, RequestKey


class InOrder:
    """The oldest request goes to the engine with the fewest; nothing moves."""

    def __init__(self) -> None:
        self.shapes: list[EngineShape] = []
        self.loads: list[int] = []
        self.queue: deque[RequestKey] = deque()
        self.home: dict[RequestKey, int] = {}
        self.finishes: dict[RequestKey, tuple[int, float]] = {}
        """Tokens and time of each response that is complete."""
        self.interruptions: list[tuple[RequestKey, int, float]] = []
        self.anew: set[RequestKey] = set()
        """Requests that begin anew when they leave their engine."""
        self.reports: list[dict[RequestKey, int]] = []

    def join(self, engine: int, shape: EngineShape) -> None:
        self.shapes.append(shape)
        self.loads.append(0)

    def dispatch(self, group: GroupRequest, now: float) -> None:
        self.queue.extend(RequestKey(group.uid, sample) for sample in range(group.samples))

    def progressed(self, tokens: Mapping[RequestKey, int], now: float) -> None:
        self.reports.append(dict(tokens))

    def interrupted(self, key: RequestKey, tokens: int, now: float) -> bool:
        self.interruptions.append((key, tokens, now))
        self.loads[self.home.pop(key)] -= 1
        self.queue.appendleft(key)
        return key in self.anew

    def finished(self, key: RequestKey, tokens: int, now: float) -> None:
        assert key not in self.finishes, f"{key} ended twice"
        self.finishes[key] = (tokens, now)
        self.loads[self.home.pop(key)] -= 1

    def room(self) -> list[int]:
        """Engines that take another request, the emptiest first."""
        free = [engine for engine, shape in enumerate(self.shapes) if self.loads[engine] < shape.limit]
        return sorted(free, key=lambda engine: (self.loads[engine], engine))

    def wants_group(self, awaited: bool = False) -> bool:
        return not self.queue and bool(self.room())

    def place(self, key: RequestKey, engine: int) -> Place:
        self.loads[engine] += 1
        self.home[key] = engine
        return Place(key, engine)

    def decide(self, now: float) -> Sequence[Action]:
        actions: list[Action] = []
        while self.queue and (free := self.room()):
            actions.append(self.place(self.queue.popleft(), free[0]))
        return actions


class Mover(InOrder):
    """Moves random requests at random moments, some of them by beginning anew."""

    def __init__(self, seed: int, share: float = 0.3) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.share = share
        self.told: set[RequestKey] = set()
        """Requests that were told to move and have not left."""
        self.keeps: dict[RequestKey, int] = {}
        """Engines that keep a place for those."""

    def finished(self, key: RequestKey, tokens: int, now: float) -> None:
        super().finished(key, tokens, now)
        self._unkeep(key)

    def interrupted(self, key: RequestKey, tokens: int, now: float) -> bool:
        assert key in self.told, f"{key} left unasked"
        return super().interrupted(key, tokens, now)

    def _unkeep(self, key: RequestKey) -> None:
        self.told.discard(key)
        self.anew.discard(key)
        engine = self.keeps.pop(key, None)
        if engine is not None:
            self.loads[engine] -= 1

    def decide(self, now: float) -> Sequence[Action]:
        actions: list[Action] = []
        for key in [key for key in self.queue if key in self.keeps]:
            self.queue.remove(key)
            engine = self.keeps[key]
            self._unkeep(key)
            actions.append(self.place(key, engine))
        actions.extend(super().decide(now))
        placed = {action.request for action in actions}
        for key in sorted(self.home):
            free = [engine for engine in self.room() if engine != self.home[key]]
            if free and key not in self.told and key not in placed and self.random.random() < self.share / 10:
                self.told.add(key)
                self.keeps[key] = self.random.choice(free)
                self.loads[self.keeps[key]] += 1
                restart = self.random.random() < 0.2
                self.anew |= {key} if restart else set()
                actions.append(Move(key, self.keeps[key], restart))
        return actions


class Script(InOrder):
    """Moves named requests to engines when a report says that they have so many tokens."""

    def __init__(
        self, moves: Mapping[RequestKey, tuple[int, int, bool]], first: Mapping[RequestKey, int]
    ) -> None:
        """`moves`: after how many tokens, where to, and whether it begins anew. `first`: where each request
        begins."""
        super().__init__()
        self.moves = dict(moves)
        self.first = dict(first)
        self.due: list[RequestKey] = []

    def progressed(self, tokens: Mapping[RequestKey, int], now: float) -> None:
        super().progressed(tokens, now)
        self.due = [key for key in self.moves if tokens.get(key, 0) >= self.moves[key][0]]

    def decide(self, now: float) -> Sequence[Action]:
        actions: list[Action] = [self.place(key, self.first[key]) for key in self.queue]
        self.queue.clear()
        for key in self.due:
            _, engine, restart = self.moves.pop(key)
            self.first[key] = engine
            self.anew |= {key} if restart else set()
            actions.append(Move(key, engine, restart))
        self.due = []
        return actions
