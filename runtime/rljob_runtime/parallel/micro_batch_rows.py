"""Micro-batches for ranks that run them in step: a row has one for each rank, and takes as long as the
costliest of them. What counts is the sum of these maxima; only within a row must costs be alike.

Bins of like cost stand in one row, so that sorting them makes the rows. Two ways to fill them are tried:

- *level*: all bins of all rows get the same cost (longest processing time first, then exchanges). Good where
  no sample costs more than a bin does on average.
- *peeled*: one row after the other, by its costliest sample. Where that one costs more than the average bin,
  the row takes as long as it whatever else is in it, so all its bins are filled up to that, costliest samples
  first. What is left goes into fewer rows, and into level ones as soon as no sample stands out.

Pure numpy.
"""

from collections.abc import Callable, Iterator

import numpy as np

from rljob_runtime.parallel.first_fit import fewest_bins, first_fit
from rljob_runtime.parallel.loads import Ints, loads_of
from rljob_runtime.parallel.longest_first import NoRoom, Room, least_with_room, longest_first, refine

_TOLERANCE = 3e-4
_ROUNDS = 40
"""Nearer to even rows is not worth the time: what a pass takes is not known as well."""


def pack_rows(tokens: Ints, costs: Ints, pass_cost: int, cap: int, ranks: int) -> tuple[Ints, int]:
    """The bin of each sample, shape (samples,), and the number of rows, each of `ranks` bins.

    The fewest rows that were found to hold the tokens, or one more where that saves more than `pass_cost`,
    which is above 0 then. No sample is above `cap`, and there is one at least."""
    fewest = max(1, -(-fewest_bins(tokens, cap) // ranks))
    # Packed without regard to cost, for where nothing else fits.
    tight = first_fit(tokens, cap)
    enough = -(-(int(tight.max()) + 1) // ranks)

    def filled(rows: int) -> list[Ints]:
        found = list(_filled(tokens, costs, cap, ranks, rows))
        return found or ([_refined(tokens, costs, tight, cap, ranks * rows)] if rows == enough else [])

    def taken(option: tuple[Ints, int]) -> int:
        return sum_of_maxima(option[0], costs, ranks, option[1]) + option[1] * pass_cost

    rows, found = _fewest_found(filled, fewest, enough)
    best = min(((bin_of, rows) for bin_of in found), key=taken)
    # Rows take an even share at least, however many there are.
    least = -(-int(costs.sum()) // ranks) + (rows + 1) * pass_cost
    if pass_cost > 0 and least < taken(best):
        more = _filled(tokens, costs, cap, ranks, rows + 1)
        best = min([best, *((bin_of, rows + 1) for bin_of in more)], key=taken)
    return best


def _fewest_found(filled: Callable[[int], list[Ints]], fewest: int, enough: int) -> tuple[int, list[Ints]]:
    """The fewest rows in which `filled` was seen to find room, with what it found; from `fewest` to `enough`,
    in which it does. Steps double until there is room, and halve back to where there was none: there may be
    hundreds of numbers in between, and to try one takes as long as a plan."""
    none, rows, step = fewest - 1, fewest, 1
    while not (found := filled(rows)):
        none, rows, step = rows, min(enough, rows + step), 2 * step
    while rows - none > 1:
        between = (none + rows) // 2
        if fewer := filled(between):
            rows, found = between, fewer
        else:
            none = between
    return rows, found


def sum_of_maxima(bin_of: Ints, costs: Ints, ranks: int, rows: int) -> int:
    """What bins cost in step, with those of like cost in one row."""
    loads = np.sort(loads_of(bin_of, costs, ranks * rows))[::-1]
    return int(loads[::ranks].sum())


def _filled(tokens: Ints, costs: Ints, cap: int, ranks: int, rows: int) -> Iterator[Ints]:
    """The bins of each of the ways that finds room for all samples."""
    ways: tuple[Callable[[Ints, Ints, int, int, int], Ints], ...] = (_level, _peeled)
    for way in ways:
        try:
            yield way(tokens, costs, cap, ranks, rows)
        except NoRoom:
            continue


def _level(tokens: Ints, costs: Ints, cap: int, ranks: int, rows: int) -> Ints:
    dealt = longest_first(costs, ranks * rows, room=Room(tokens, cap))
    return _refined(tokens, costs, dealt, cap, ranks * rows)


def _refined(tokens: Ints, costs: Ints, bin_of: Ints, cap: int, bins: int) -> Ints:
    return refine(costs, bin_of, bins, room=Room(tokens, cap), tolerance=_TOLERANCE, rounds=_ROUNDS)


def _peeled(tokens: Ints, costs: Ints, cap: int, ranks: int, rows: int) -> Ints:
    bin_of = np.empty(len(costs), np.int64)
    left = np.argsort(-costs, kind="stable")
    for row in range(rows):
        # Rows for what is left, as even as can be.
        if int(costs[left[0]]) * ranks * (rows - row) <= int(costs[left].sum()):
            bin_of[left] = row * ranks + _level(tokens[left], costs[left], cap, ranks, rows - row)
            return bin_of
        # Up to the first sample's cost, which the row takes in any case.
        kept = np.arange(len(left))
        taken = least_with_room(costs[left], kept, ranks, Room(tokens[left], cap), limit=int(costs[left[0]]))
        bin_of[left[taken >= 0]] = row * ranks + taken[taken >= 0]
        left = left[taken < 0]
        if not len(left):
            return bin_of
    raise NoRoom
