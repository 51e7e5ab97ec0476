"""Offload: running requests that turn out to be long move to the heavy engines.

A move costs the prefill of prompt and tokens on the new engine, for the request itself and for each that runs
there, since all stand still for it; or the copy of its tokens. It is made only if it saves twice that, if
nothing ends later there than the last of all requests would have ended anyway, and where the cache will not
be short when all has grown, or will be shorter here. Of a request that has no token nothing is known but what
its siblings were: it must save that also where it turns out to be short. What the next training step waits
for goes first. Pure.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from rljob_runtime.routing.book import EngineState, RequestState
from rljob_runtime.routing.deadlines import is_urgent
from rljob_runtime.routing.estimates import Remaining
from rljob_runtime.routing.requests import EngineShape, Move

_STEP_GAIN = 0.03
"""Least part of a step's time that a move into the heavy pool saves."""
_MARGIN = 2.0
"""How many times its cost a move must save: the cost is certain, what is to come an estimate; and the place
that it leaves may be taken by a request whose prefill takes longer there."""
_CACHE_FULL = 0.9
"""Part of its KV cache beyond which an engine gets no further requests: what runs needs room to grow."""
_DOUBT = 2.0
"""How many times as long as expected a prefill may take, and a response may become."""
_TRIED = 4
"""Heavy engines, those that run fewest, that are tried for a request."""
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
    surely: Remaining | None = None,
) -> list[Move]:
    """Requests that turn out to be long to the heavy engines, at most `most`, the urgent ones first, then the
    longest. `cut`: remaining tokens from which on a request is long; `urgent`: see `is_urgent`; `surely`:
    what a request will generate still in most cases, `remaining` where it is not given."""
    places = _Places(heavy, fast, remaining)
    moves: list[Move] = []
    for left, source, request in _longest_first(fast, cut * SLACK, remaining, urgent):
        if len(moves) >= most or not places.free:
            break
        target = places.emptiest(request, left, source)
        if target is None:
            continue
        here = source.shape.cost.step(places.counts[source.number], places.kv_tokens[source.number])
        kv_there = places.kv_tokens[target.number] + request.kv_tokens
        there = target.shape.cost.step(places.counts[target.number] + 1, kv_there)
        saved = (surely or remaining)(request) * (here - there)
        pays = saved > _MARGIN * _cost(request, target, places.counts[target.number])
        if there < (1 - _STEP_GAIN) * here and pays and places.in_time(request, left, there, target):
            moves.append(places.move(request, left, source, target))
    return moves


@dataclass(slots=True)
class _Outlook:
    """What is to come on an engine."""

    growth: float
    """Tokens that all its requests together will still generate."""
    longest: float
    """Tokens that the longest of them will still generate."""
    end: float
    """Seconds until that one has ended, as things are."""
    prefill: float
    """Seconds that the engine may still spend on what has come to it, and comes: that keeps requests away,
    and lets none leave, since much of it may be done."""


class _Places:
    """Engines as they will be after the moves so far."""

    def __init__(
        self, heavy: Sequence[EngineState], fast: Sequence[EngineState], remaining: Remaining
    ) -> None:
        self.counts: dict[int, int] = {}
        self.kv_tokens: dict[int, int] = {}
        for engine in chain(heavy, fast):
            arriving = sum(request.kv_tokens for request in engine.arriving.values())
            self.counts[engine.number] = engine.count
            self.kv_tokens[engine.number] = engine.kv_tokens + arriving
        self._fast, self._remaining = fast, remaining
        self._outlooks: dict[int, _Outlook] = {}
        """Of the engines that were looked at: all requests of hundreds of engines are too many for that."""
        self._last: float | None = None
        """Seconds until all that runs on fast engines has ended; None: not looked at."""
        self._free = [
            (engine.count, engine.number, engine.room, engine)
            for engine in heavy
            if engine.room and not cache_full(engine.shape, self.kv_tokens[engine.number])
        ]
        heapq.heapify(self._free)

    @property
    def free(self) -> bool:
        """Whether any heavy engine has room."""
        return bool(self._free)

    def emptiest(self, request: RequestState, left: float, source: EngineState) -> EngineState | None:
        """The heavy engine with room for this request, in its KV cache as well, that runs fewest."""
        for _, _, _, engine in heapq.nsmallest(_TRIED, self._free):
            if self._fits(request, left, source, engine):
                return engine
        return None

    def _fits(self, request: RequestState, left: float, source: EngineState, target: EngineState) -> bool:
        """Whether the target's cache holds what runs there and this request now, and also when they have
        grown, or is then not shorter than that of the source."""
        capacity = target.shape.kv_tokens
        if capacity is None:
            return True
        now = self.kv_tokens[target.number] + request.kv_tokens
        if now > capacity:
            return False
        grown = now + _DOUBT * (self._outlook(target).growth + left)
        return grown <= capacity or grown <= capacity * self._grown_share(source)

    def _grown_share(self, engine: EngineState) -> float:
        """How many times its cache is full when all that an engine runs has grown."""
        if not engine.shape.kv_tokens:
            return 0.0
        grown = self.kv_tokens[engine.number] + _DOUBT * self._outlook(engine).growth
        return grown / engine.shape.kv_tokens

    def in_time(self, request: RequestState, left: float, step: float, target: EngineState) -> bool:
        """Whether nothing ends later on the target, whose step is so long with this request, than the last of
        all would have ended anyway."""
        there = self._outlook(target)
        if self._last is None:
            self._last = max(self._outlook(engine).end for engine in self._fast)
        prefill = there.prefill + _prefill(request, target)
        return max(left, there.longest) * step + prefill <= max(self._last, there.end)

    def _outlook(self, engine: EngineState) -> "_Outlook":
        found = self._outlooks.get(engine.number)
        if found is None:
            here = chain(engine.running.values(), engine.arriving.values())
            lefts = [self._remaining(request) for request in here]
            longest = max(lefts, default=0.0)
            step = engine.shape.cost.step(self.counts[engine.number], self.kv_tokens[engine.number])
            found = _Outlook(sum(lefts), longest, longest * step, engine.fill_seconds)
            self._outlooks[engine.number] = found
        return found

    def move(self, request: RequestState, left: float, source: EngineState, target: EngineState) -> Move:
        """A request leaves for a heavy engine."""
        self._outlook(source).growth -= left
        there = self._outlook(target)
        there.growth += left
        there.longest = max(there.longest, left)
        there.prefill += _prefill(request, target)
        self.counts[source.number] -= 1
        self.kv_tokens[source.number] -= request.kv_tokens
        self.counts[target.number] += 1
        self.kv_tokens[target.number] += request.kv_tokens
        place = next(place for place, free in enumerate(self._free) if free[3] is target)
        count, number, room, engine = self._free[place]
        self._free[place] = self._free[-1]
        self._free.pop()
        heapq.heapify(self._free)
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


def _prefill(request: RequestState, target: EngineState) -> float:
    """Seconds by which a move puts off what runs on its new engine, at most."""
    return _DOUBT * request.kv_tokens * target.shape.cost.moved


def _cost(request: RequestState, target: EngineState, running: int) -> float:
    """Seconds that a move takes from the request, and from the `running` ones on its new engine: they stand
    still for a prefill, and not for a copy."""
    cost = target.shape.cost
    stopped = 1 + running if cost.per_copied_token is None else 1
    return request.kv_tokens * cost.moved * stopped
