"""Karmarkar and Karp's largest differencing method for several bins ("The differencing method of set
partitioning", 1982): of all partial partitions the two with the largest differences are put together, the
heavy bins of one onto the light bins of the other, until one is left.

Guarantees: the sums are those of the usual implementation (a heap of states with `bins` sets each, as in
verl's `seqlen_balancing`), ties included; with `equal` bins have the same number of items, or differ by one.
Pure numpy.

A partial partition holds only the bins that have items, as arrays, and the items are put into bins once, at
the end, by walking back through what was joined. So n items need O(n) memory, where a heap of states needs
O(n * bins).
"""

import heapq
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from rljob_runtime.parallel.loads import Ints, integer_costs


class _Partition(NamedTuple):
    """A partial partition: its bins with items, in descending order of sums and ties."""

    sums: Ints
    ties: Ints
    """What is compared where sums are equal: a bin's number of items, then the item that came into it first;
    as the number times all items, plus the first item."""
    nodes: Ints
    """Each bin as a node of the joins: an item, or a join of two nodes."""


_LARGEST = 2**63 - 1
_Entry: TypeAlias = tuple[int, int, int, int]


def karmarkar_karp(costs: ArrayLike, bins: int, equal: bool = False) -> Ints:
    """The bin of each item, shape (items,); bins are numbered by descending load.

    With `equal` the items that are missing to a multiple of `bins` count as items of cost 0. Raises
    `ValueError` for `bins` below 1 and for costs that `loads.integer_costs` refuses.
    """
    values = integer_costs(costs)
    if bins < 1:
        raise ValueError(f"{bins} bins: there must be one or more")
    if not len(values):
        return np.empty(0, np.int64)
    missing = -len(values) % bins if equal else 0
    padded = np.concatenate([values, np.zeros(missing, np.int64)])
    partitions = _beginning(padded, bins, missing, equal)
    joins = _Joins(len(padded))
    heap = [_entry(partition, bins, index) for index, partition in enumerate(partitions)]
    heapq.heapify(heap)
    while len(heap) > 1:
        larger = heapq.heappop(heap)[-1]
        smaller = heap[0][-1]
        partitions[larger] = _together(partitions[larger], partitions[smaller], bins, joins)
        heapq.heapreplace(heap, _entry(partitions[larger], bins, larger))
    return joins.bins_of(partitions[heap[0][-1]].nodes)[: len(values)]


def _beginning(costs: Ints, bins: int, missing: int, equal: bool) -> list[_Partition]:
    """One partition for each item, or with `equal` for each `bins` items of like cost."""
    # What is missing comes first, so that it is all in one partition and no bin lacks two items.
    order = np.lexsort((np.arange(len(costs)), costs, np.arange(len(costs)) < len(costs) - missing))
    rows = order.reshape(-1, bins if equal else 1)
    # Within a row the costs ascend and so do, for like costs, the items: the reverse is the order wanted.
    return [_Partition(costs[row], len(costs) + row, row) for row in rows[:, ::-1]]


def _entry(partition: _Partition, bins: int, index: int) -> _Entry:
    """Its place in the heap: by the largest difference, then by the heaviest bin."""
    sums = partition.sums
    largest = int(sums[0])
    smallest = int(sums[-1]) if len(sums) == bins else 0
    return smallest - largest, -largest, -int(partition.ties[0]), index


class _Joins:
    """Which nodes were joined to which: a forest whose leaves are the items."""

    def __init__(self, items: int) -> None:
        self.items = items
        self._nodes = items
        self._left: list[Ints] = []
        self._right: list[Ints] = []

    def join(self, left: Ints, right: Ints) -> Ints:
        """New nodes, each for one of `left` and the one of `right` at its place."""
        made = np.arange(self._nodes, self._nodes + len(left))
        self._nodes += len(left)
        self._left.append(left)
        self._right.append(right)
        return made

    def bins_of(self, roots: Ints) -> Ints:
        """For each item the place in `roots` of the node that it is part of."""
        bin_of = np.zeros(self._nodes, np.int64)
        bin_of[roots] = np.arange(len(roots))
        end = self._nodes
        # A node is made after those that it joins, so that going backwards meets it first.
        for left, right in zip(reversed(self._left), reversed(self._right), strict=True):
            joined = bin_of[end - len(left) : end]
            bin_of[left] = joined
            bin_of[right] = joined
            end -= len(left)
        return bin_of[: self.items]


def _together(one: _Partition, other: _Partition, bins: int, joins: _Joins) -> _Partition:
    """Both in one: the heaviest bin of `one` with the lightest of `other`, and so on. Bins without an item
    are the lightest."""
    shared = max(0, len(one.sums) + len(other.sums) - bins)
    alone, theirs = len(one.sums) - shared, len(other.sums) - shared
    if not shared:
        sums, ties, nodes = (np.concatenate(pair) for pair in zip(one, other, strict=True))
    else:
        # From the lightest of `other` to its heaviest that meets a bin with items.
        sums = _joined(one.sums, one.sums[alone:] + other.sums[theirs:][::-1], other.sums, alone, theirs)
        items = other.ties[theirs:][::-1] // joins.items * joins.items
        ties = _joined(one.ties, one.ties[alone:] + items, other.ties, alone, theirs)
        made = joins.join(one.nodes[alone:], other.nodes[theirs:][::-1])
        nodes = _joined(one.nodes, made, other.nodes, alone, theirs)
    order = _ascending(sums, ties, joins.items)[::-1]
    return _Partition(sums[order], ties[order], nodes[order])


def _ascending(sums: Ints, ties: Ints, items: int) -> Ints:
    """The order by sums, then by ties, which are below (items + 1) * items."""
    several = (items + 1) * items
    if int(sums.max()) < _LARGEST // several:
        # One number for both: half the time of sorting by two.
        return np.argsort(sums * several + ties)
    order: Ints = np.lexsort((ties, sums))
    return order


def _joined(one: Ints, both: Ints, other: Ints, alone: int, theirs: int) -> Ints:
    return np.concatenate((one[:alone], both, other[:theirs]))
