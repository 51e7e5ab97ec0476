"""Levelling: running requests move from the engine that will finish last to the one that will finish first,
which is what is left to do when nothing waits any more.

Where it is assumed what a move costs, and none pays by that, one that does no harm is tried, and tells: else
an assumption that is too high would never be found out.

A move costs the prefill of prompt and tokens on the new engine, or their copy; it is made only if it saves
twice that, since what is to come is not known, and a part of the time besides.

What the next training step waits for, the urgent requests, goes first: from the engine that will have
finished them last to the one whose steps are the shortest, as long as nothing ends later there than the last
of all requests would have ended anyway. So the others are never put off for it. Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from rljob_runtime.routing.book import EngineState, RequestState
from rljob_runtime.routing.deadlines import is_urgent
from rljob_runtime.routing.drain import Load, drain_seconds
from rljob_runtime.routing.estimates import Remaining
from rljob_runtime.routing.requests import Move, MoveReason, RequestKey

_LEVEL_GAIN = 0.05
"""Least part of the time until all have finished that a levelling move saves, beyond its cost."""
_MARGIN = 2.0
"""How many times its cost a levelling move must save: the cost is certain, what is to come an estimate."""
_CANDIDATES = 8
"""Requests of an engine that are tried for a levelling move, of all lengths."""
_LEVEL_ROUNDS = 4
"""Most pairs of engines that are levelled at a time: what follows from it is seen before the next."""


def level(engines: Sequence[EngineState], remaining: Remaining, urgent: int | None = None) -> list[Move]:
    """Moves between these engines; see the module. `urgent`: see `is_urgent`."""
    plan = _Levels(engines, remaining, urgent)
    if urgent is not None:
        plan.level(until_urgent=True)
    plan.level(until_urgent=False)
    return plan.moves


def trial(engines: Sequence[EngineState], remaining: Remaining) -> list[Move]:
    """At most one move, to an engine of which it is assumed what a move there costs: it need save nothing,
    since it tells that. Nothing ends later for it than the last of all would have ended anyway, even if it
    costs twice what is assumed."""
    takers = [engine for engine in engines if engine.room > 0 and engine.shape.cost.to_try]
    return _Levels(engines, remaining, None).trial(takers) if takers else []


class _Levels:
    """Engines as they will be after the moves so far."""

    def __init__(self, engines: Sequence[EngineState], remaining: Remaining, urgent: int | None) -> None:
        self.moves: list[Move] = []
        self._engines = engines
        self._running = {
            engine.number: {request.key: request for request in engine.movable} for engine in engines
        }
        self._arriving = {engine.number: dict(engine.arriving) for engine in engines}
        # Numbers alone: a load for each request would have the garbage collector look through all that is
        # under way.
        self._remaining = {
            key: remaining(request)
            for running in chain(self._running.values(), self._arriving.values())
            for key, request in running.items()
        }
        self._urgent: set[RequestKey] = set()
        if urgent is not None:
            self._urgent = {
                key
                for running in self._running.values()
                for key, request in running.items()
                if is_urgent(request, urgent)
            }
        self._steps = {engine.number: self._step(engine) for engine in engines}
        """Seconds of a step of each engine."""
        self._prefill = dict.fromkeys(self._running, 0.0)
        """Seconds that each engine spends on what moves to it."""
        self._pending = {engine.number: engine.fill_seconds for engine in engines}
        """Seconds that each may still spend on what has come to it before. Much of it may be done: it keeps
        requests away from an engine, and lets none leave."""

    def level(self, until_urgent: bool) -> None:
        """Add moves that let the last engine finish sooner; with `until_urgent`, finish its urgent
        requests."""
        ends = {
            engine.number: self._end(engine, until_urgent, self._loads(engine)) for engine in self._engines
        }
        last = math.inf
        if until_urgent:
            last = max(self._end(engine, False, self._loads(engine)) for engine in self._engines)

        def taking(engine: EngineState) -> tuple[float, ...]:
            """The smallest takes: of those that end first, or else of all, the one with the shortest
            steps."""
            order = self._steps[engine.number], engine.number
            return order if until_urgent else (ends[engine.number] + self._pending[engine.number], *order)

        for _ in range(_LEVEL_ROUNDS):
            donor = max(self._engines, key=lambda engine: (ends[engine.number], -engine.number))
            taker = min(self._engines, key=taking)
            room = taker.room - sum(move.engine == taker.number for move in self.moves)
            if taker is donor or room < 1:
                break
            found = self._best(donor, taker, room, until_urgent, last)
            if found is None or found.end > (1 - _LEVEL_GAIN) * ends[donor.number]:
                break
            if any(move.request in found.keys for move in self.moves):
                # Each request moves once at a time.
                break
            ends[donor.number], ends[taker.number] = found.donor_end, found.taker_end
            for key in found.keys:
                self._running[taker.number][key] = self._running[donor.number].pop(key)
            for engine in (donor, taker):
                self._steps[engine.number] = self._step(engine)
            self._prefill[taker.number] += found.prefill
            reason: MoveReason = "urgent" if until_urgent else "levelled"
            self.moves += [Move(key, taker.number, reason=reason) for key in found.keys]

    def trial(self, takers: Sequence[EngineState]) -> list[Move]:
        """See the function; to one of these engines."""
        ends = {engine.number: self._end(engine, False, self._loads(engine)) for engine in self._engines}
        donor = max(self._engines, key=lambda engine: (ends[engine.number], -engine.number))
        taker = min(takers, key=lambda each: (ends[each.number] + self._pending[each.number], each.number))
        if taker is donor:
            return []
        found = self._best(donor, taker, 1, False, math.inf)
        if found is None or found.end > ends[donor.number]:
            return []
        return [Move(key, taker.number, reason="levelled") for key in found.keys]

    def _step(self, engine: EngineState) -> float:
        running = self._here(engine).values()
        return engine.shape.cost.step(len(running), sum([request.kv_tokens for request in running]))

    def _here(self, engine: EngineState) -> dict[RequestKey, RequestState]:
        """What an engine runs, or will have run."""
        return self._running[engine.number] | self._arriving[engine.number]

    def _loads(self, engine: EngineState) -> dict[RequestKey, Load]:
        """What an engine runs."""
        return {
            key: Load(1, self._remaining[key], request.kv_tokens)
            for key, request in self._here(engine).items()
        }

    def _end(self, engine: EngineState, until_urgent: bool, loads: Mapping[RequestKey, Load]) -> float:
        """When an engine has finished this, or the urgent part of it."""
        values: Iterable[Load] = loads.values()
        if until_urgent:
            longest = max((load.remaining for key, load in loads.items() if key in self._urgent), default=0.0)
            values = [load._replace(remaining=min(load.remaining, longest)) for load in values]
        ordered = sorted(values, key=lambda load: load.remaining)
        return drain_seconds(engine.shape, ordered) + self._prefill[engine.number]

    def _seconds(self, key: RequestKey, donor: EngineState, taker: EngineState) -> float:
        """What a move costs. There is nothing to copy of what has not begun."""
        request, cost = self._running[donor.number][key], taker.shape.cost
        return request.kv_tokens * (cost.moved if request.begun else cost.per_prefill_token)

    def _best(
        self, donor: EngineState, taker: EngineState, room: int, until_urgent: bool, last: float
    ) -> "_Level | None":
        """The requests of the donor, at most `room`, after whose move both have finished soonest; none after
        which either has finished all it runs later than `last`."""
        own, others = self._loads(donor), self._loads(taker)
        ordered = sorted(self._running[donor.number], key=lambda key: (own[key].remaining, key))
        if until_urgent:
            ordered = [key for key in ordered if key in self._urgent]
        best: _Level | None = None
        free, pending = _free_cache(taker, others.values()), self._pending[taker.number]
        for keys in _tried(ordered, room, taker.shape.slowness < donor.shape.slowness):
            moved = {key: own[key] for key in keys}
            if sum(load.kv_tokens + load.remaining for load in moved.values()) > free:
                continue
            cost = _MARGIN * sum(self._seconds(key, donor, taker) for key in keys)
            left, there = {key: load for key, load in own.items() if key not in moved}, {**others, **moved}
            found = _Level(
                keys,
                cost,
                self._end(donor, until_urgent, left),
                self._end(taker, until_urgent, there) + cost,
                pending,
            )
            if until_urgent and self._end(taker, False, there) + cost + pending > last:
                continue
            if best is None or found.end < best.end:
                best = found
        return best


@dataclass(frozen=True)
class _Level:
    keys: tuple[RequestKey, ...]
    prefill: float
    """Seconds that the taker spends on them."""
    donor_end: float
    taker_end: float
    pending: float
    """Seconds by which the taker may end later, for what has come to it before."""

    @property
    def end(self) -> float:
        return max(self.donor_end, self.taker_end + self.pending)


def _tried(ordered: Sequence[RequestKey], room: int, quicker: bool) -> list[tuple[RequestKey, ...]]:
    """Which requests to try, of those that are given in order of length: some single ones of all lengths; and
    two, four, and so on up to half of them, of all lengths as well, so that an engine with nothing to do gets
    its share at once. `quicker`: whether the engine that takes them is the quicker one; then also as many of
    the longest, which keep a slow engine busy for longest."""
    last = len(ordered) - 1
    single = {ordered[last * place // (_CANDIDATES - 1)] for place in range(_CANDIDATES) if ordered}
    found: list[tuple[RequestKey, ...]] = [(key,) for key in sorted(single)]
    count = 2
    while count <= min(room, len(ordered) // 2):
        found.append(tuple(ordered[(2 * place + 1) * len(ordered) // (2 * count)] for place in range(count)))
        if quicker:
            found.append(tuple(ordered[-count:]))
        count *= 2
    return found


def _free_cache(engine: EngineState, loads: Iterable[Load]) -> float:
    """Tokens that fit into an engine's KV cache when all that it runs has grown to its end: a request that
    moves there must not drive others out."""
    if engine.shape.kv_tokens is None:
        return math.inf
    return engine.shape.kv_tokens - sum(load.kv_tokens + load.remaining for load in loads)
