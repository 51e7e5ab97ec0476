"""Which running requests change their engine: to where they end sooner, if that saves more than it costs.

Two kinds of moves. *Into their pool*: requests that turn out to be long, to the heavy engines. *Levelling*:
from the engine that will finish last to the one that will finish first, which is what is left to do when
nothing waits any more. A move costs the prefill of prompt and tokens on the new engine; it is made only if it
saves more than that, with a margin for what is not known. Pure.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from rljob_runtime.routing.book import EngineState, RequestState
from rljob_runtime.routing.drain import Capacity, Load, drain_seconds
from rljob_runtime.routing.requests import EngineShape, Move, RequestKey

_STEP_GAIN = 0.03
"""Least part of a step's time that a move into the heavy pool saves."""
_LEVEL_GAIN = 0.05
"""Least part of the time until all have finished that a levelling move saves, beyond its cost."""
_CANDIDATES = 8
"""Requests of an engine that are tried for a levelling move, of all lengths."""
_LEVEL_MOVES = 4
"""Most levelling moves at a time: what follows from them is seen before the next."""
_CACHE_FULL = 0.9
"""Part of its KV cache beyond which an engine gets no further requests: what runs needs room to grow."""
_SLACK = 1.25
"""How far beyond the cut a request must be to move, so that it does not move back and forth."""


Remaining = Callable[[RequestState], float]
"""Tokens that a response is expected to generate still."""


def movable(engine: EngineState) -> list[RequestState]:
    """The requests that an engine may lose."""
    return [request for request in engine.running.values() if not request.moving]


def capacity(engine: EngineState) -> Capacity:
    """An engine as predictions see it."""
    shape = engine.shape
    return Capacity(shape.cost, shape.limit, shape.kv_tokens)


def cache_full(shape: EngineShape, kv_tokens: int) -> bool:
    """Whether an engine with so many tokens in its KV cache is to get no further requests."""
    return shape.kv_tokens is not None and kv_tokens > _CACHE_FULL * shape.kv_tokens


def into_pools(
    heavy: Sequence[EngineState], fast: Sequence[EngineState], cut: float, remaining: Remaining, most: int
) -> list[Move]:
    """Requests that turn out to be long to the heavy engines, the longest first, at most `most`. `cut`:
    remaining tokens from which on a request is long."""
    places = _Places(heavy, fast)
    moves: list[Move] = []
    for left, source, request in _longest_first(fast, cut * _SLACK, remaining):
        target = places.emptiest()
        if target is None or len(moves) >= most:
            break
        here = source.shape.cost.step(places.counts[source.number], places.kv_tokens[source.number])
        kv_there = places.kv_tokens[target.number] + request.kv_tokens
        there = target.shape.cost.step(places.counts[target.number] + 1, kv_there)
        saved = left * (here - there)
        fits = target.shape.kv_tokens is None or kv_there <= target.shape.kv_tokens
        if fits and there < (1 - _STEP_GAIN) * here and saved > _cost(request, target):
            moves.append(places.move(request, source, target))
    return moves


def level(engines: Sequence[EngineState], remaining: Remaining) -> list[Move]:
    """Moves from engines that finish last to those that finish first."""
    loads = {
        engine.number: {
            request.key: Load(1, remaining(request), request.kv_tokens) for request in movable(engine)
        }
        for engine in engines
    }
    ends = {engine.number: _drain(engine, loads[engine.number].values()) for engine in engines}
    prefill = dict.fromkeys(ends, 0.0)
    moves: list[Move] = []
    while len(moves) < _LEVEL_MOVES:
        donor = max(engines, key=lambda engine: (ends[engine.number], -engine.number))
        taker = min(engines, key=lambda engine: (ends[engine.number], engine.number))
        arriving = sum(move.engine == taker.number for move in moves)
        if len(loads[donor.number]) < 2 or taker.room <= arriving:
            break
        found = _best_level(donor, taker, loads, prefill)
        if found is None or found.end > (1 - _LEVEL_GAIN) * ends[donor.number]:
            break
        loads[taker.number][found.key] = loads[donor.number].pop(found.key)
        ends[donor.number], ends[taker.number] = found.donor_end, found.taker_end
        prefill[taker.number] += loads[taker.number][found.key].kv_tokens * taker.shape.cost.per_prefill_token
        if any(move.request == found.key for move in moves):
            break
        moves.append(Move(found.key, taker.number, reason="levelled"))
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
    donor: EngineState,
    taker: EngineState,
    loads: Mapping[int, Mapping[RequestKey, Load]],
    prefill: Mapping[int, float],
) -> _Level | None:
    """The request of the donor after whose move both have finished soonest. `prefill`: seconds that each
    engine spends on what moves to it already."""
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
            _drain(donor, (load for other, load in own.items() if other != key)) + prefill[donor.number],
            _drain(taker, [*others, moved]) + prefill[taker.number] + cost,
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
    """Engines as they will be after the moves so far."""

    def __init__(self, heavy: Iterable[EngineState], fast: Iterable[EngineState]) -> None:
        self.counts: dict[int, int] = {}
        self.kv_tokens: dict[int, int] = {}
        for engine in chain(heavy, fast):
            self.counts[engine.number], self.kv_tokens[engine.number] = engine.count, engine.kv_tokens
        self._free = [
            (engine.count, engine.number, engine.room, engine)
            for engine in heavy
            if engine.room and not cache_full(engine.shape, engine.kv_tokens)
        ]
        heapq.heapify(self._free)

    def emptiest(self) -> EngineState | None:
        """The heavy engine with room, in its KV cache as well, that runs fewest."""
        return self._free[0][3] if self._free else None

    def move(self, request: RequestState, source: EngineState, target: EngineState) -> Move:
        """A request leaves for the emptiest engine."""
        self.counts[source.number] -= 1
        self.kv_tokens[source.number] -= request.kv_tokens
        self.counts[target.number] += 1
        self.kv_tokens[target.number] += request.kv_tokens
        count, number, room, engine = heapq.heappop(self._free)
        if room > 1 and not cache_full(engine.shape, self.kv_tokens[engine.number]):
            heapq.heappush(self._free, (count + 1, number, room - 1, engine))
        return Move(request.key, target.number, reason="long")


def _longest_first(
    engines: Iterable[EngineState], least: float, remaining: Remaining
) -> list[tuple[float, EngineState, RequestState]]:
    """Requests with at least `least` tokens to come: these, where each runs, and the request."""
    found = [
        (left, engine, request)
        for engine in engines
        for request in movable(engine)
        if (left := remaining(request)) >= least
    ]
    return sorted(found, key=lambda each: (-each[0], each[2].key))


def _cost(request: RequestState, target: EngineState) -> float:
    return request.kv_tokens * target.shape.cost.per_prefill_token


def _drain(engine: EngineState, loads: Iterable[Load]) -> float:
    return drain_seconds(capacity(engine), sorted(loads, key=lambda load: load.remaining))
