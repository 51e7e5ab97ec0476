"""Levelling of engines that share each decode step, as the data-parallel ranks of a large expert-parallel
model do.

A step takes as long as the rank with the most requests, padded to its gear, and the one with the most KV
tokens need, so that all ranks gain by what relieves the fullest one:

1. *Gear*: where the mean load fits a smaller gear than the fullest rank needs, the surplus of all ranks above
   it goes to ranks below. All of them, or none: one rank that stays above would keep the step as long.
2. *KV tokens*: from the rank with most to the one with least, in exchange where that one is at the gear.

Each of the two is done if the steps that it shortens save more than the moves cost. Which request moves is
chosen by its KV tokens: the one that comes nearest to levelling the two ranks. Pure.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from rljob_runtime.routing.book import EngineState, RequestState
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.estimates import Remaining
from rljob_runtime.routing.requests import Move, RequestKey

_MARGIN = 1.5
"""How many times its cost a change must save: what is to come is an estimate."""
_EXCHANGES = 64
"""Most moves, or exchanges, of KV tokens at a time."""
_LEVEL = 0.01
"""Part of a rank's KV tokens by which ranks may differ."""


def level_lockstep(engines: Sequence[EngineState], remaining: Remaining) -> list[Move]:
    """Moves between engines that share each step, and have one cost."""
    moves: dict[RequestKey, int] = {}
    for change in (_lower_gear, _level_tokens):
        plan = _Plan(engines, moves)
        before = plan.step
        horizon = change(plan, remaining)
        if (before - plan.step) * horizon > _MARGIN * plan.seconds and plan.moves:
            moves |= plan.moves
    return [Move(key, number, reason="levelled") for key, number in moves.items()]


class _Rank:
    """An engine as it will be after the moves so far."""

    def __init__(self, engine: EngineState, moved: Mapping[RequestKey, int]) -> None:
        self.number = engine.number
        self.limit = engine.shape.limit
        self.count, self.tokens = engine.count, engine.kv_tokens
        self.requests = {each.key: each for each in engine.movable if each.key not in moved}
        """Those that may move."""
        self.room = engine.room
        """Requests that may move here: what leaves makes no room before it has left."""
        self.arriving = 0
        """KV tokens that come with moves."""

    def nearest(self, tokens: float) -> RequestState | None:
        """The request whose KV tokens come nearest to this."""
        return min(
            self.requests.values(), key=lambda each: (abs(each.kv_tokens - tokens), each.key), default=None
        )


class _Plan:
    """Ranks, and moves between them. `accepted`: moves that will be made in any case."""

    def __init__(self, engines: Sequence[EngineState], accepted: Mapping[RequestKey, int]) -> None:
        self.cost: StepCost = engines[0].shape.cost
        self.ranks = [_Rank(engine, accepted) for engine in engines]
        self.moves: dict[RequestKey, int] = {}
        """Where each request that moves goes."""
        by_number = {rank.number: rank for rank in self.ranks}
        for engine in engines:
            for key, target in accepted.items():
                if key in engine.running:
                    self._shift(engine.running[key], by_number[engine.number], by_number[target])

    def move(self, request: RequestState, source: _Rank, target: _Rank) -> None:
        del source.requests[request.key]
        self._shift(request, source, target)
        target.arriving += request.kv_tokens
        self.moves[request.key] = target.number

    def _shift(self, request: RequestState, source: _Rank, target: _Rank) -> None:
        source.count, source.tokens = source.count - 1, source.tokens - request.kv_tokens
        target.count, target.tokens = target.count + 1, target.tokens + request.kv_tokens
        target.room -= 1

    @property
    def seconds(self) -> float:
        """What the moves cost: ranks receive at the same time, and all wait for the last."""
        return self.cost.moved * max(rank.arriving for rank in self.ranks)

    @property
    def step(self) -> float:
        """Seconds of a decode step."""
        return self.cost.step(max(rank.count for rank in self.ranks), self.most_tokens)

    @property
    def most_tokens(self) -> int:
        return max(rank.tokens for rank in self.ranks)

    def gear(self, count: float) -> int:
        """Requests that a step for so many of each rank computes."""
        return self.cost.gear(math.ceil(count))


def _lower_gear(plan: _Plan, remaining: Remaining) -> float:
    """Bring all ranks down to the gear of their mean load. Returns for how many steps they would have stayed
    above it otherwise."""
    gear = plan.gear(sum(rank.count for rank in plan.ranks) / len(plan.ranks))
    above = [rank for rank in plan.ranks if rank.count > gear]
    steps = 0.0
    for source in above:
        surplus = source.count - gear
        ends = sorted(map(remaining, source.requests.values()))
        if len(ends) < surplus:
            return 0.0
        steps = max(steps, ends[surplus - 1])
        for _ in range(surplus):
            target = min(plan.ranks, key=lambda rank: (rank.count >= gear, rank.tokens, rank.number))
            request = source.nearest(max(0.0, (source.tokens - target.tokens) / 2))
            if request is None or target.count >= gear:
                return 0.0
            plan.move(request, source, target)
    return steps


def _level_tokens(plan: _Plan, remaining: Remaining) -> float:
    """Level KV tokens, within the present gear. Returns for how many steps that lasts: until half of what
    moved has ended."""
    gear = min(plan.gear(max(rank.count for rank in plan.ranks)), plan.ranks[0].limit)
    moved: list[float] = []
    for _ in range(_EXCHANGES):
        source = max(plan.ranks, key=lambda rank: (rank.tokens, rank.number))
        target = min(plan.ranks, key=lambda rank: (rank.tokens, rank.number))
        gap = source.tokens - target.tokens
        if gap <= _LEVEL * source.tokens:
            break
        back: RequestState | None = None
        wanted = gap / 2
        if target.room < 1:
            break
        if target.count >= gear:
            # No room within the gear: the shortest one comes back for it.
            back = target.nearest(0.0) if source.room > 0 else None
            if back is None:
                break
            wanted += back.kv_tokens
        request = source.nearest(wanted)
        change = 0 if request is None else request.kv_tokens - (back.kv_tokens if back else 0)
        if request is None or not 0 < change < gap:
            break
        moved.append(remaining(request))
        plan.move(request, source, target)
        if back is not None:
            plan.move(back, target, source)
    return statistics.median(moved) if moved else 0.0
