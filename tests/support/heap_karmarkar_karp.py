"""Karmarkar–Karp in its plain form: a heap of states, each with all its bins as lists of items."""

import heapq
from collections.abc import Sequence

Bin = tuple[int, int, list[int]]
"""Sum, number of items, items in the order in which they came."""


def heap_karmarkar_karp(costs: Sequence[int], bins: int, equal: bool) -> list[tuple[int, ...]]:
    """The items of each bin, ascending; bins by descending sum. With `equal` the number of items is a
    multiple of `bins`."""
    if not costs:
        return [() for _ in range(bins)]
    order = sorted(range(len(costs)), key=lambda item: (costs[item], item))
    step = bins if equal else 1
    rows = [order[start : start + step] for start in range(0, len(order), step)]
    heap = [_entry([(costs[item], 1, [item]) for item in row], bins) for row in rows]
    heapq.heapify(heap)
    while len(heap) > 1:
        larger, smaller = heapq.heappop(heap)[-1], heapq.heappop(heap)[-1]
        joined = [
            (one[0] + other[0], one[1] + other[1], one[2] + other[2])
            for one, other in zip(larger, reversed(smaller), strict=True)
        ]
        heapq.heappush(heap, _entry(joined, bins))
    return [tuple(sorted(items)) for _, _, items in heap[0][-1]]


def _entry(found: list[Bin], bins: int) -> tuple[int, int, int, list[int], list[Bin]]:
    """A state by descending sum, behind what the heap compares."""
    state = sorted(found + [(0, 0, [])] * (bins - len(found)), reverse=True)
    heaviest = state[0]
    return (
        state[-1][0] - heaviest[0],
        -heaviest[0],
        -heaviest[1],
        [-item for item in heaviest[2]],
        state,
    )
