"""Engines and requests for tests of routing: a book with requests where a test wants them, and a router that
is told what happens."""

from collections.abc import Iterable, Mapping, Sequence

from rljob_runtime.routing.book import Book, EngineState, GroupState, RequestState
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import Action, EngineShape, GroupRequest, Move, Place, RequestKey
from rljob_runtime.routing.router import Router

COST = StepCost(fixed=0.01, per_request=1e-4, per_kv_token=1e-8, per_prefill_token=1e-5)
"""A step of 100 requests takes twice as long as one of none."""


def shape_of(cost: StepCost, limit: int, kv_tokens: int | None) -> EngineShape:
    """An engine of the fast pool."""
    return EngineShape("fast", limit, kv_tokens, cost)


def faster(cost: StepCost, speed: float) -> StepCost:
    """What the same work costs on an engine that is so many times as fast."""
    return cost._replace(
        fixed=cost.fixed / speed,
        per_request=cost.per_request / speed,
        per_kv_token=cost.per_kv_token / speed,
        per_prefill_token=cost.per_prefill_token / speed,
    )


def group_of(
    finished: Sequence[int] = (), running: Iterable[int] = (), row: int = 0, uid: int = 0
) -> GroupState:
    """A group with complete responses of these tokens, and others that have these tokens so far."""
    tokens = list(running)
    group = GroupState(GroupRequest(uid, row, 10, len(finished) + len(tokens)), finished=list(finished))
    for index, count in enumerate(tokens, len(finished)):
        group.requests[index] = RequestState(RequestKey(uid, index), group, count)
    return group


class Engines:
    """A book with an engine for each list of `tokens`, which runs requests that have so many, and
    will generate `left` more. Deadlines that are not given, by uid, are 5."""

    def __init__(
        self, left: Sequence[Sequence[int]], limit: int = 64, prompt: int = 10, cost: StepCost = COST,
        kv_tokens: int | None = None, tokens: int = 1, deadlines: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.book = Book()
        self.left: dict[RequestKey, int] = {}
        self.engines = [
            self.book.join(number, EngineShape("fast", limit, kv_tokens, cost)) for number in range(len(left))
        ]
        for engine, lefts in zip(self.engines, left, strict=True):
            for each in lefts:
                uid = len(self.left)
                deadline = (deadlines or {}).get(uid, 5)
                (request,) = self.book.add(GroupRequest(uid, uid, prompt, 1, deadline)).requests.values()
                self.book.place(request, engine)
                self.book.progress({request.key: tokens})
                self.left[request.key] = each

    def remaining(self, request: RequestState) -> float:
        return self.left[request.key]


class Routed:
    """A router, and what it has done: `where` each request runs, `leaving` where those go that it has told to
    move."""

    def __init__(
        self, policy: Policy, fast: int = 0, heavy: int = 0, limit: int = 8, cost: StepCost = COST,
        speed: float = 1.0,
    ) -> None:  # fmt: skip
        """`speed`: how many times as fast the heavy engines are."""
        self.router = Router(policy)
        self.where: dict[RequestKey, int] = {}
        self.leaving: dict[RequestKey, int | None] = {}
        self.reasons: dict[RequestKey, str] = {}
        """Why those that were told to move last move."""
        self.placed: list[RequestKey] = []
        """In this order."""
        self.tokens: dict[RequestKey, int] = {}
        self.now = 0.0
        for number in range(fast + heavy):
            pool, times = ("fast", 1.0) if number < fast else ("heavy", speed)
            self.router.join(number, EngineShape(pool, limit, cost=faster(cost, times)))

    def engine(self, number: int) -> EngineState:
        return self.router.book.engines[number]

    def on(self, number: int) -> set[tuple[int, int]]:
        """Group and number of the responses on an engine."""
        return {(key.uid, key.sample) for key, engine in self.where.items() if engine == number}

    def decide(self, seconds: float = 0.0) -> list[Action]:
        """What the router does so much later."""
        self.now += seconds
        actions = self.router.decide(self.now)
        for action in actions:
            match action:
                case Place(key, engine):
                    assert key not in self.where
                    self.where[key] = engine
                    self.placed.append(key)
                case Move(key, target, _, reason):
                    self.leaving[key], self.reasons[key] = target, reason
        self.router.book.check()
        return actions

    def dispatch(
        self, uids: Iterable[int], samples: int = 4, row: int | None = None, deadline: int = 0
    ) -> None:
        """Groups; the router decides when all are there."""
        for uid in uids:
            request = GroupRequest(uid, uid if row is None else row, 10, samples, deadline)
            self.router.dispatch(request, self.now)
        self.decide()

    def progress(self, tokens: Mapping[tuple[int, int], int], seconds: float = 0.0) -> None:
        """Responses have so many tokens."""
        news = {RequestKey(*key): count for key, count in tokens.items()}
        self.tokens |= news
        self.router.progressed(news, self.now)
        self.decide(seconds)

    def finish(self, uid: int, sample: int, tokens: int) -> None:
        key = RequestKey(uid, sample)
        del self.where[key]
        self.leaving.pop(key, None)
        self.tokens.pop(key, None)
        self.router.finished(key, tokens, self.now)
        self.decide()

    def interrupt(self, key: RequestKey) -> None:
        """It leaves its engine, as it was told or because the engine is gone."""
        del self.where[key]
        self.leaving.pop(key, None)
        self.router.interrupted(key, self.tokens.get(key, 0), self.now)

    def arrive(self) -> None:
        """Everything that was told to move leaves its engine."""
        for key in list(self.leaving):
            self.interrupt(key)
        self.decide()

    def lose(self, number: int) -> None:
        """An engine is gone, with what it runs."""
        self.router.remove(number)
        for key in [key for key, engine in self.where.items() if engine == number]:
            self.interrupt(key)
        self.decide()
