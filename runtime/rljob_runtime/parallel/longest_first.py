"""Longest processing time first (Graham, 1969), and pairwise exchange behind it: balance for many items in
milliseconds.

Guarantees: the largest load after `refine` is never above that before it; with `equal` bins have the same
number of items, or differ by one; with a room, no bin exceeds it; the same arguments give the same result
on every machine, since all sums are of integers and nothing depends on time. Pure numpy.
"""

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import neg

import numpy as np
from numpy.typing import ArrayLike

from rljob_runtime.parallel.karmarkar_karp import karmarkar_karp
from rljob_runtime.parallel.loads import Ints, integer_costs, loads_of

_TOLERANCE = 6e-6
"""A largest load so little above the mean is not worth another round."""
_FEW = 2**14
"""Items of which it takes a fraction of a second to try other beginnings, where the first leads to nothing
even."""
_ROUNDS = 250
_PAIRS = 8
"""Fewest pairs of a round, also where fewer bins are too heavy."""
_MOST_OPTIONS = 2**17
"""Most exchanges between one bin and all others that are compared; where there are more, for each item that
the bin could take only the two to give that bring the loads closest."""
_LOOK_ROUNDS = 2**14
"""Items that are looked at for one bin in the time of a round."""
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Room:
    """What bins have room for besides their load."""

    sizes: Ints
    """Of each item, shape (items,), such as its tokens."""
    cap: int
    """Most that the sizes in a bin may sum to."""


class NoRoom(Exception):
    """An item fits into no bin beside those that were dealt before it."""


def balance(costs: ArrayLike, bins: int, equal: bool = False) -> Ints:
    """The bin of each item, shape (items,): `longest_first` and `refine`; with `equal` from the bins of
    Karmarkar and Karp where those are more even. Without it, where so many items at most are left uneven,
    whichever is most even of this, of what has `equal` bins, and of `refine` from Karmarkar and Karp's: of
    few items to a bin each is at times the only one near the best."""
    values = integer_costs(costs)
    if equal:
        starts = longest_first(values, bins, equal), karmarkar_karp(values, bins, equal)
        return refine(values, _most_even(starts, values, bins), bins, equal)
    best = refine(values, longest_first(values, bins), bins)
    loads = loads_of(best, values, bins)
    if len(values) > _FEW or not len(values) or loads.max() <= _enough(values, loads, _TOLERANCE):
        return best
    starts = balance(values, bins, equal=True), karmarkar_karp(values, bins)
    return _most_even([best, *(refine(values, start, bins) for start in starts)], values, bins)


def _most_even(found: Sequence[Ints], costs: Ints, bins: int) -> Ints:
    """The one whose largest load is the smallest."""
    return min(found, key=lambda bin_of: int(loads_of(bin_of, costs, bins).max(initial=0)))


def longest_first(costs: ArrayLike, bins: int, equal: bool = False, room: Room | None = None) -> Ints:
    """The bin of each item, shape (items,): each, the costliest first, goes to the bin with the least load,
    with a `room` to that of those that it fits into, with `equal` to that of those that are to have more
    items: what a bin with costly items lacks in number then comes last, and costs least.

    Raises `ValueError` for `bins` below 1 and for costs that `loads.integer_costs` refuses, `NoRoom`."""
    values = integer_costs(costs)
    if bins < 1:
        raise ValueError(f"{bins} bins: there must be one or more")
    if equal or room is None:
        return _least_loaded(values, np.argsort(-values, kind="stable"), bins, equal)
    # Of items of one cost the largest first: it is the hardest to place.
    return least_with_room(values, np.lexsort((-room.sizes, -values)), bins, room)


def _least_loaded(costs: Ints, order: Ints, bins: int, equal: bool) -> Ints:
    places = [0] * len(costs)
    heap = [(0, index) for index in range(bins)]
    # With `equal` bins have `each` items, and `spare` of them one more.
    each, spare = divmod(len(costs), bins) if equal else (len(costs), 0)
    left = [each] * bins
    for item, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
        while left[heap[0][1]] == 0 and not spare:
            heapq.heappop(heap)
        load, index = heap[0]
        places[item] = index
        left[index] -= 1
        if left[index] < 0:
            spare -= 1
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (load + cost, index))
    return np.array(places, dtype=np.int64)


def least_with_room(costs: Ints, order: Ints, bins: int, room: Room, limit: int | None = None) -> Ints:
    """The bin of each item, shape (items,): in `order`, which descends by cost, each goes to the bin with the
    least load of those that it fits into. With a `limit` no load exceeds that, and an item that goes nowhere
    has -1; without one that raises `NoRoom`."""
    bin_of = np.full(len(costs), -1, np.int64)
    loads, free = np.zeros(bins, np.int64), np.full(bins, room.cap, np.int64)
    most = int(costs.sum()) if limit is None else limit
    # Entries whose load is not that of the bin any more are left in the heap and skipped.
    heap: list[tuple[int, int]] = [(0, index) for index in range(bins)]
    items, sizes, ordered = order.tolist(), room.sizes[order].tolist(), costs[order].tolist()
    at = 0
    while at < len(items):
        size, cost = sizes[at], ordered[at]
        while heap[0][0] != loads[heap[0][1]]:
            heapq.heappop(heap)
        load, place = heap[0]
        if load + cost > most:
            # On to the first one that costs no more than what the lightest bin can still take.
            at = bisect_left(ordered, load - most, at, key=neg)
            continue
        if size > free[place]:
            place = _lightest_with_room(loads, free, size)
            if place < 0 and limit is None:
                raise NoRoom
        if place >= 0 and loads[place] + cost <= most:
            bin_of[items[at]] = place
            free[place] -= size
            loads[place] += cost
            heapq.heappush(heap, (int(loads[place]), place))
        at += 1
    return bin_of


def _lightest_with_room(loads: Ints, free: Ints, size: int) -> int:
    """The bin with the least load that has room for a size; -1 where none has."""
    fitting = np.flatnonzero(free >= size)
    return int(fitting[loads[fitting].argmin()]) if len(fitting) else -1


def refine(
    costs: ArrayLike,
    bin_of: Ints,
    bins: int,
    equal: bool = False,
    room: Room | None = None,
    tolerance: float = _TOLERANCE,
    rounds: int = _ROUNDS,
) -> Ints:
    """`bin_of` with items exchanged, until its largest load is above the mean by a share of `tolerance` at
    most, or as near to it as whole costs allow, or is the costliest item, or nothing helps it, or for so many
    `rounds`.

    In a round the heaviest bin is put beside the lightest, the next beside the next, and so on; each pair
    exchanges the one item for one (or, where `equal` allows it, for none) after which its two loads are
    closest. Where that does not help the heaviest bin, it is put beside the second lightest, the fourth, the
    eighth, and so on, and the others beside those that follow; at last all bins are looked at for it."""
    values = integer_costs(costs)
    best = np.array(bin_of, dtype=np.int64)
    if bins < 2 or not len(values):
        return best
    exchange = _Exchange(values, bins, equal, room)
    loads = loads_of(best, values, bins)
    enough = _enough(values, loads, tolerance)
    look = 1 + len(values) // _LOOK_ROUNDS
    shifts = (bins // 2).bit_length()
    shift, spent = 0, 0
    while spent < rounds and loads.max() > enough:
        if shift < shifts:
            spent += 1
            # The next light bins often have what this one has, for they were filled in the same way.
            helped = exchange.round(best, loads, (1 << shift) - 1, enough)
            shift = 0 if helped else shift + 1
        else:
            spent += look
            if not exchange.heaviest(best, loads):
                break
            # Most of what is too heavy then is helped only so.
            shift = shifts - 1
        loads = loads_of(best, values, bins)
    return best


def _enough(costs: Ints, loads: Ints, tolerance: float) -> float:
    """A largest load at which there is nothing to gain."""
    unit = max(1, int(np.gcd.reduce(costs)))
    whole_mean = -(-int(loads.sum()) // (len(loads) * unit)) * unit
    return max(float(loads.mean()) * (1 + tolerance), float(whole_mean), float(costs.max()))


class _Exchange:
    """Exchanges items between pairs of bins, one round at a time."""

    def __init__(self, costs: Ints, bins: int, equal: bool, room: Room | None) -> None:
        self._bins, self._equal, self._room = bins, equal, room
        # The last item is nothing: what a bin takes that only gives.
        self._nothing = len(costs)
        self._costs = np.append(costs, 0)
        self._sizes = np.append(np.zeros_like(costs) if room is None else room.sizes, 0)
        self._distinct = np.unique(self._costs)
        self._ranks = np.searchsorted(self._distinct, self._costs)

    def round(self, bin_of: Ints, loads: Ints, shift: int, enough: float) -> bool:
        """One round, in place; whether it made the heaviest bin lighter. The heaviest bin is paired with the
        lightest one but `shift`, the next with the one after that, and so on, down to a load of `enough`."""
        half = self._bins // 2
        by_load = np.argsort(-loads, kind="stable")
        number = min(half, max(_PAIRS, int((loads > enough).sum())))
        heavy, light = by_load[:number], np.roll(by_load[::-1][:half], -shift)[:number]
        give, take, pairs = self._options(bin_of, heavy, light, loads[heavy] - loads[light])
        # How far apart the pair's loads are after the exchange.
        rest = np.abs((loads[heavy] - loads[light])[pairs] - 2 * (self._costs[give] - self._costs[take]))
        order = np.lexsort((rest, pairs))
        # The first option of each pair.
        best = order[np.diff(pairs[order], prepend=-1) > 0]
        give, take, pairs = give[best], take[best], pairs[best]
        bin_of[give] = light[pairs]
        back = take != self._nothing
        bin_of[take[back]] = heavy[pairs[back]]
        return bool(len(pairs)) and int(pairs[0]) == 0

    def _options(self, bin_of: Ints, heavy: Ints, light: Ints, gap: Ints) -> tuple[Ints, Ints, Ints]:
        """What heavy bins can give and take so that both loads of the pair are below the heavy one: for each
        item given the two to take that bring the loads closest."""
        givers, pairs = self._members(bin_of, heavy)
        takers, taker_pairs = self._members(bin_of, light)
        lone = self._may_only_give(pairs, taker_pairs, len(heavy))
        takers = np.append(takers, np.full(len(lone), self._nothing))
        taker_pairs = np.append(taker_pairs, lone)
        # One row of pairs, each sorted by cost, so that one search serves all of them. Ranks in place of the
        # costs keep the keys small.
        ranks = len(self._distinct)
        keys = taker_pairs * ranks + self._ranks[takers]
        order = np.argsort(keys, kind="stable")
        keys, takers, taker_pairs = keys[order], takers[order], taker_pairs[order]
        wanted = np.searchsorted(self._distinct, self._costs[givers] - gap[pairs] // 2)
        at = np.searchsorted(keys, pairs * ranks + wanted)
        # One place beyond either end is no item of the pair.
        places = np.stack([at, at - 1]).clip(0, len(takers) - 1)
        give, take, of = np.tile(givers, 2), takers[places].ravel(), np.tile(pairs, 2)
        less = self._costs[give] - self._costs[take]
        useful = (taker_pairs[places].ravel() == of) & (less > 0) & (less < gap[of])
        if self._room is not None:
            free = self._room.cap - loads_of(bin_of, self._room.sizes, self._bins)
            more = self._sizes[give] - self._sizes[take]
            useful &= (more <= free[light[of]]) & (-more <= free[heavy[of]])
        return give[useful], take[useful], of[useful]

    def _members(self, bin_of: Ints, bins: Ints) -> tuple[Ints, Ints]:
        """The items in `bins`, and at which place there their bin is."""
        place = np.full(self._bins, -1)
        place[bins] = np.arange(len(bins))
        items = np.flatnonzero(place[bin_of] >= 0)
        return items, place[bin_of[items]]

    def _may_only_give(self, pairs: Ints, taker_pairs: Ints, number: int) -> Ints:
        """Those of `number` pairs whose heavy bin may give an item and take none."""
        if not self._equal:
            return np.arange(number)
        gives, takes = (np.bincount(each, minlength=number) for each in (pairs, taker_pairs))
        return np.flatnonzero(gives > takes)

    def heaviest(self, bin_of: Ints, loads: Ints) -> bool:
        """The best exchange between the heaviest bin and any other, in place; whether there is one."""
        index = int(loads.argmax())
        give, take, other = self._of_heaviest(bin_of, loads, index)
        gap = int(loads[index]) - loads[other]
        less = self._costs[give] - self._costs[take]
        useful = (less > 0) & (less < gap)
        if self._room is not None:
            free = self._room.cap - loads_of(bin_of, self._room.sizes, self._bins)
            more = self._sizes[give] - self._sizes[take]
            useful &= (more <= free[other]) & (-more <= free[index])
        rest = np.where(useful, np.abs(gap - 2 * less), _LARGEST)
        if not useful.any():
            return False
        best = int(rest.argmin())
        bin_of[give[best]] = other[best]
        if take[best] != self._nothing:
            bin_of[take[best]] = index
        return True

    def _of_heaviest(self, bin_of: Ints, loads: Ints, index: int) -> tuple[Ints, Ints, Ints]:
        """What the bin `index` can give, and take from which other bin for it."""
        givers = np.flatnonzero(bin_of == index)
        givers = givers[np.argsort(self._costs[givers], kind="stable")]
        takers = np.flatnonzero(bin_of != index)
        others = bin_of[takers]
        counts = np.bincount(bin_of, minlength=self._bins)
        lone = np.flatnonzero(counts < counts[index]) if self._equal else np.arange(self._bins)
        lone = lone[lone != index]
        takers = np.append(takers, np.full(len(lone), self._nothing))
        others = np.append(others, lone)
        if len(givers) * len(takers) <= _MOST_OPTIONS:
            return np.repeat(givers, len(takers)), np.tile(takers, len(givers)), np.tile(others, len(givers))
        wanted = self._costs[takers] + (loads[index] - loads[others]) // 2
        at = np.searchsorted(self._costs[givers], wanted)
        places = np.stack([at, at - 1]).clip(0, len(givers) - 1)
        return givers[places].ravel(), np.tile(takers, 2), np.tile(others, 2)
