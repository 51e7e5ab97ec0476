"""How many engines are to run the long requests alone, and which requests are long.

A decode step costs something whatever runs in it. So the longest requests, on which everybody waits, end
soonest beside few others, and the short ones cost least beside many. The plan finds the length from which on
a request is heavy, such that heavy and fast engines finish together, and, where no pool is heavy by itself,
the number of engines that are heavy; none where that does not pay.

Requests are counted in buckets of remaining length, so that the cost does not grow with their number. Pure.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from rljob_runtime.routing.drain import Load, drain_seconds
from rljob_runtime.routing.requests import EngineShape

_PER_DOUBLING = 4
"""Buckets from one length to the double of it."""
_EDGES = [2.0 ** (place / _PER_DOUBLING) for place in range(24 * _PER_DOUBLING)]
"""Remaining tokens from which on a request is in each bucket, but for the first, which has what is below."""
PAYS = 0.3
"""Part of the time that engines which become heavy must save. Estimates of lengths are that uncertain: with
less, engines change their roles for nothing."""

POOLS_PAY = 0.1
"""Part of the time that a cut between two pools must save over pools that both take requests of all lengths.
Less than for engines: the pools are there, and none changes its role for it."""
_HALVINGS = 7
"""Of the interval in which the share of a pool is looked for: it is then known to a hundredth."""


Counts: TypeAlias = dict[int, list[float]]
"""For each bucket the number of requests, and the sums of their remaining tokens, of those in a cache and of
those to be prefilled."""


class Split(NamedTuple):
    """What is planned."""

    heavy: int
    """Engines that run long requests alone."""
    cut: float
    """Remaining tokens from which on a request is heavy; infinite where none is."""
    heavy_seconds: float
    """Until the heavy engines have finished."""
    fast_seconds: float
    """Until the others have."""

    @property
    def seconds(self) -> float:
        return max(self.heavy_seconds, self.fast_seconds)


NO_SPLIT = Split(0, math.inf, 0.0, 0.0)
"""No engine is heavy, and no request is long."""


def count(found: Counts, remaining: float, kv: int, fill: int = 0) -> None:
    """One more request, by its remaining tokens, those in a KV cache, and those to be prefilled: `merged`
    makes loads of them."""
    bucket = max(0, bisect_right(_EDGES, remaining) - 1)
    sums = found.get(bucket)
    if sums is None:
        sums = found[bucket] = [0.0, 0.0, 0.0, 0.0]
    sums[0] += 1
    sums[1] += remaining
    sums[2] += kv
    sums[3] += fill


def merged(*counts: Counts) -> list[Load]:
    """All that was counted together, shortest first."""
    found: Counts = {}
    for each in counts:
        for bucket, sums in each.items():
            before = found.get(bucket, (0.0, 0.0, 0.0, 0.0))
            found[bucket] = [one + other for one, other in zip(before, sums, strict=True)]
    return [Load(number, *(each / number for each in sums)) for _, (number, *sums) in sorted(found.items())]


def split_pools(loads: Sequence[Load], heavy: Sequence[EngineShape], fast: Sequence[EngineShape]) -> Split:
    """The cut between two pools that are there; none where it does not pay: where all places are taken in any
    case, where lengths are much alike, or where the heavy pool is the slower one. `loads`: the shortest
    first."""
    if not heavy or not fast:
        return _undivided(loads, fast or heavy)
    found, together = _best_cut(loads, heavy, fast), _mixed(loads, heavy, fast)
    return found if found.seconds < (1 - POOLS_PAY) * together else Split(0, math.inf, together, together)


def _mixed(loads: Sequence[Load], heavy: Sequence[EngineShape], fast: Sequence[EngineShape]) -> float:
    """Seconds until both pools have finished where each has the same share of the requests of every length:
    that share with which they finish together."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        sooner = shared(_part(loads, share), heavy) < shared(_part(loads, 1 - share), fast)
        low, high = (share, high) if sooner else (low, share)
    # With this share the heavy ones are the sooner.
    return shared(_part(loads, 1 - low), fast)


def _part(loads: Sequence[Load], share: float) -> list[Load]:
    return [load._replace(number=load.number * share) for load in loads]


def split_engines(loads: Sequence[Load], engines: Sequence[EngineShape]) -> Split:
    """How many of the engines, the quickest first, are to be heavy, at most half of them, and the cut; none
    where it does not pay, or where requests do not all run to their ends at a time: places and caches are
    short then, and an engine that keeps some of them for the longest slows the others."""
    none = best = _undivided(loads, engines)
    if not _all_fit(loads, engines):
        return none
    count = 1
    while count <= len(engines) // 2:
        found = _best_cut(loads, engines[:count], engines[count:])
        if found.seconds < best.seconds:
            best = found
        # More engines matter less each: their number need not be exact.
        count = max(count + 1, count * 5 // 4)
    return best if best.seconds < (1 - PAYS) * none.seconds else none


def _all_fit(loads: Sequence[Load], engines: Sequence[EngineShape]) -> bool:
    """Whether the engines can run all of this at a time, also when it has grown to its end."""
    if sum(load.number for load in loads) > sum(engine.limit for engine in engines):
        return False
    grown = sum(load.number * (load.kv_tokens + load.remaining) for load in loads)
    return any(engine.kv_tokens is None for engine in engines) or grown <= sum(
        engine.kv_tokens or 0 for engine in engines
    )


def _best_cut(loads: Sequence[Load], heavy: Sequence[EngineShape], fast: Sequence[EngineShape]) -> Split:
    """The cut with which both finish soonest."""
    low, high = 0, len(loads)
    # The more loads are fast, the later the fast engines finish and the sooner the heavy ones: the first cut
    # with which the heavy ones are not later, or the one before it.
    while low < high:
        middle = (low + high) // 2
        found = _divide(loads, middle, fast, heavy)
        if found.heavy_seconds <= found.fast_seconds:
            high = middle
        else:
            low = middle + 1
    around = [_divide(loads, place, fast, heavy) for place in (low - 1, low) if place >= 0]
    return min(around, key=lambda found: found.seconds)


def _undivided(loads: Sequence[Load], engines: Sequence[EngineShape]) -> Split:
    """What comes of it when all engines take everything."""
    return Split(0, math.inf, 0.0, shared(loads, engines))


def _divide(
    loads: Sequence[Load], place: int, fast: Sequence[EngineShape], heavy: Sequence[EngineShape]
) -> Split:
    """What comes of it when the loads before `place` are fast and the others heavy."""
    return Split(len(heavy), _cut(loads, place), shared(loads[place:], heavy), shared(loads[:place], fast))


def _cut(loads: Sequence[Load], place: int) -> float:
    """Remaining tokens between the loads before `place` and the others: in the middle, by ratio, as each load
    stands for requests around its length."""
    if place == 0:
        return 0.0
    if place == len(loads):
        return math.inf
    return math.sqrt(max(1.0, loads[place - 1].remaining) * max(1.0, loads[place].remaining))


def shared(loads: Sequence[Load], engines: Sequence[EngineShape]) -> float:
    """Seconds until engines have finished what is shared out evenly among them."""
    if not loads:
        return 0.0
    share = len(engines)
    # Engines of one pool are mostly alike; the middle one stands for all of them.
    return drain_seconds(engines[share // 2], [load._replace(number=load.number / share) for load in loads])
