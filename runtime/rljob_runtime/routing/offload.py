"""Offload: running requests that turn out to be long move to the heavy engines.

A move costs the prefill of prompt and tokens on the new engine, for the request itself and for each that runs
there, since all stand still for it; or the copy of its tokens. It is made only if it saves more than that.
What the next training step waits for goes first. Pure.
"""

import heapq
from collections.abc import Iterable, Sequence
from itertools import chain

from rljob_runtime.routing.book import EngineState, RequestState
from rljob_runtime.routing.deadlines import is_urgent
from rljob_runtime.routing.estimates import Remaining
from rljob_runtime.routing.requests import EngineShape, Move

_STEP_GAIN = 0.03
"""Least part of a step's time that a move into the heavy pool saves."""
_CACHE_FULL = 0.9
"""Part of its KV cache beyond which an engine gets no further requests: what runs needs room to grow."""
SLACK = 1.25
"""How far beyond the cut a request must be to move, so that it does not move back and forth."""


def cache_full(shape: EngineShape, kv_tokens: int) -> bool:
    """Whether an engine with so many tokens in its KV cache is to get no further requests."""
    return shape.kv_tokens is not None and kv_tokens > _CACHE_FULL * shape.kv_tokens


def offload(
    heavy: Sequence[EngineState],
    fast: Sequence[EngineState],
    cut: float,
    remaining: Remaining,
    most: int,
    urgent: int | None = None,
) -> list[Move]:
    """Requests that turn out to be long to the heavy engines, at most `most`, the urgent ones first, then the
    longest. `cut`: remaining tokens from which on a request is long; `urgent`: see `is_urgent`."""
    places = _Places(heavy, fast)
    moves: list[Move] = []
    for left, source, request in _longest_first(fast, cut * SLACK, remaining, urgent):
        target = places.emptiest()
        if target is None or len(moves) >= most:
            break
        here = source.shape.cost.step(places.counts[source.number], places.kv_tokens[source.number])
        kv_there = places.kv_tokens[target.number] + request.kv_tokens
        there = target.shape.cost.step(places.counts[target.number] + 1, kv_there)
        saved = left * (here - there)
        fits = target.shape.kv_tokens is None or kv_there <= target.shape.kv_tokens
        pays = saved > _cost(request, target, places.counts[target.number])
        if fits and there < (1 - _STEP_GAIN) * here and pays:
            moves.append(places.move(request, source, target))
    return moves


class _Places:
    """Engines as they will be after the moves so far."""

    def __init__(self, heavy: Iterable[EngineState], fast: Iterable[EngineState]) -> None:
        self.counts: dict[int, int] = {}
        self.kv_tokens: dict[int, int] = {}
        for engine in chain(heavy, fast):
            arriving = sum(request.kv_tokens for request in engine.arriving.values())
            self.counts[engine.number] = engine.count
            self.kv_tokens[engine.number] = engine.kv_tokens + arriving
        self._free = [
            (engine.count, engine.number, engine.room, engine)
            for engine in heavy
            if engine.room and not cache_full(engine.shape, self.kv_tokens[engine.number])
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
    engines: Iterable[EngineState], least: float, remaining: Remaining, urgent: int | None
) -> list[tuple[float, EngineState, RequestState]]:
    """Requests with at least `least` tokens to come: these, where each runs, and the request; the urgent
    ones first."""
    found = [
        (left, engine, request)
        for engine in engines
        for request in engine.movable
        if (left := remaining(request)) >= least
    ]
    return sorted(found, key=lambda each: (not is_urgent(each[2], urgent), -each[0], each[2].key))


def _cost(request: RequestState, target: EngineState, running: int) -> float:
    """Seconds that a move takes from the request, and from the `running` ones on its new engine: they stand
    still for a prefill, and not for a copy."""
    cost = target.shape.cost
    stopped = 1 + running if cost.per_copied_token is None else 1
    return request.kv_tokens * cost.moved * stopped
