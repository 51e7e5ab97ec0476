"""Which running requests change their engine: to where they end sooner, if that saves more than it costs.

Two kinds of moves. *Into their pool*: requests that turn out to be long, to the heavy engines. *Levelling*:
from the engine that will finish last to the one that will finish first, which is what is left to do when
nothing waits any more. A move costs the prefill of prompt and tokens on the new engine; it is made only if it
saves more than that, with a margin for what is not known. Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rljob_runtime.routing.book import EngineState, RequestState
from rljob_runtime.routing.drain import Capacity, Load, drain_seconds
from rljob_runtime.routing.requests import Move, RequestKey

_STEP_GAIN = 0.03
"""Least part of a step's time that a move into the heavy pool saves."""
_LEVEL_GAIN = 0.05
"""Least part of the time until all have finished that a levelling move saves, beyond its cost."""
_CANDIDATES = 8
"""Requests of an engine that are tried for a levelling move, of all lengths."""
_LEVEL_MOVES = 4
"""Most levelling moves at a time: what follows from them is seen before the next."""
_SLACK = 1.25
"""How far beyond the cut a request must be to move, so that it does not move back and forth."""


@dataclass(frozen=True)
class Outlook:
    """What is expected of the requests that run."""

    remaining: Mapping[RequestKey, float]
    """Tokens that each will still generate."""

    def movable(self, engine: EngineState) -> list[RequestState]:
        """The requests that an engine may lose."""
        return [
            request
            for request in engine.running.values()
            if not request.moving and request.key in self.remaining
        ]


def capacity(engine: EngineState) -> Capacity:
    """An engine as predictions see it."""
    shape = engine.shape
    return Capacity(shape.cost, shape.limit, shape.kv_tokens)


def into_pools(
    heavy: Sequence[EngineState], fast: Sequence[EngineState], cut: float, outlook: Outlook, most: int
) -> list[Move]:
    """Requests that turn out to be long to the heavy engines, the longest first, at most `most`. `cut`:
    remaining tokens from which on a request is long."""
    places = _Places([*heavy, *fast])
    moves: list[Move] = []
    for request in _longest_first(fast, outlook):
        remaining = outlook.remaining[request.key]
        if remaining < cut * _SLACK or len(moves) >= most:
            break
        source, target = request.engine, places.emptiest(heavy)
        if source is None or target is None:
            break
        here = source.shape.cost.step(places.count(source), source.kv_tokens)
        there = target.shape.cost.step(places.count(target) + 1, target.kv_tokens + request.kv_tokens)
        saved = remaining * (here - there)
        if there < (1 - _STEP_GAIN) * here and saved > _cost(request, target):
            moves.append(places.move(request, source, target))
    return moves


def level(engines: Sequence[EngineState], outlook: Outlook) -> list[Move]:
    """Moves from engines that finish last to those that finish first."""
    loads = {
        engine.number: {
            request.key: Load(1, outlook.remaining[request.key], request.kv_tokens)
            for request in outlook.movable(engine)
        }
        for engine in engines
    }
    ends = {engine.number: _drain(engine, loads[engine.number].values()) for engine in engines}
    moves: list[Move] = []
    while len(moves) < _LEVEL_MOVES:
        donor = max(engines, key=lambda engine: (ends[engine.number], -engine.number))
        taker = min(engines, key=lambda engine: (ends[engine.number], engine.number))
        arriving = sum(move.engine == taker.number for move in moves)
        if len(loads[donor.number]) < 2 or taker.room <= arriving:
            break
        found = _best_level(donor, taker, loads)
        if found is None or found.end > (1 - _LEVEL_GAIN) * ends[donor.number]:
            break
        loads[taker.number][found.key] = loads[donor.number].pop(found.key)
        ends[donor.number], ends[taker.number] = found.donor_end, found.taker_end
        if any(move.request == found.key for move in moves):
            break
        moves.append(Move(found.key, taker.number))
    return moves


@dataclass(frozen=True)
class _Level:
    key: RequestKey
    donor_end: float
    taker_end: float

    @property
    def end(self) -> float:
        return max(self.donor_end, self.taker_end)


def _best_level(
    donor: EngineState, taker: EngineState, loads: Mapping[int, Mapping[RequestKey, Load]]
) -> _Level | None:
    """The request of the donor after whose move both have finished soonest."""
    own, others = loads[donor.number], loads[taker.number].values()
    ordered = sorted(own, key=lambda key: (own[key].remaining, key))
    last = len(ordered) - 1
    tried = {ordered[last * place // (_CANDIDATES - 1)] for place in range(_CANDIDATES)}
    best: _Level | None = None
    free = _free_cache(taker, others)
    for key in sorted(tried):
        moved = own[key]
        if moved.kv_tokens + moved.remaining > free:
            continue
        cost = moved.kv_tokens * taker.shape.cost.per_prefill_token
        found = _Level(
            key,
            _drain(donor, (load for other, load in own.items() if other != key)),
            _drain(taker, [*others, moved]) + cost,
        )
        if best is None or found.end < best.end:
            best = found
    return best


def _free_cache(engine: EngineState, loads: Iterable[Load]) -> float:
    """Tokens that fit into an engine's KV cache when all that it runs has grown to its end: a request that
    moves there must not drive others out."""
    if engine.shape.kv_tokens is None:
        return math.inf
    return engine.shape.kv_tokens - sum(load.kv_tokens + load.remaining for load in loads)


class _Places:
    """Requests on engines as they will be after the moves so far."""

    def __init__(self, engines: Iterable[EngineState]) -> None:
        self._counts = {engine.number: engine.count for engine in engines}
        self._room = {engine.number: engine.room for engine in engines}

    def count(self, engine: EngineState) -> int:
        return self._counts[engine.number]

    def emptiest(self, engines: Sequence[EngineState]) -> EngineState | None:
        """The engine with room that runs fewest."""
        free = [engine for engine in engines if self._room[engine.number] > 0]
        return min(free, key=lambda engine: (self._counts[engine.number], engine.number), default=None)

    def move(self, request: RequestState, source: EngineState, target: EngineState) -> Move:
        self._counts[source.number] -= 1
        self._counts[target.number] += 1
        # The place on the source is free only when the request has left.
        self._room[target.number] -= 1
        return Move(request.key, target.number)


def _longest_first(engines: Iterable[EngineState], outlook: Outlook) -> list[RequestState]:
    requests = [request for engine in engines for request in outlook.movable(engine)]
    return sorted(requests, key=lambda request: (-outlook.remaining[request.key], request.key))


def _cost(request: RequestState, target: EngineState) -> float:
    return request.kv_tokens * target.shape.cost.per_prefill_token


def _drain(engine: EngineState, loads: Iterable[Load]) -> float:
    return drain_seconds(capacity(engine), sorted(loads, key=lambda load: load.remaining))
