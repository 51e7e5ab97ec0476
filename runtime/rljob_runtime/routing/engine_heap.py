"""The engine with the smallest score among those that have room, without a look at every engine: with a
thousand engines and thousands of requests per second, a decision that visits each of them would take the
driver's whole core.

Guarantee: `best` names an engine whose newest score is the smallest; among equals the one that came first.
Equal histories give equal choices. Pure.
"""

import heapq

_STALE_SHARE = 3
"""Entries in the heap for each engine with room before it is rebuilt."""
_STALE_SLACK = 64
"""Entries that the heap may hold beyond that, so that small heaps are not rebuilt all the time."""


class EngineHeap:
    """Scores of engines that have room. Engines are known by numbers; those that came earlier have smaller
    ones.

    `set` takes O(log engines) and `best` O(1), both amortized: a heap of (score, engine) in which entries
    that no longer hold are left until they come to the top or outnumber those that hold.
    """

    def __init__(self) -> None:
        self._scores: dict[int, float] = {}
        """Newest score of each engine that has room."""
        self._heap: list[tuple[float, int]] = []
        """Has an entry for each item of `_scores`, and stale ones."""

    def __len__(self) -> int:
        return len(self._scores)

    def set(self, engine: int, score: float | None) -> None:
        """The score of an engine is now `score`; None: it has no room."""
        if score is None:
            self._scores.pop(engine, None)
            return
        # The same score has its entry in the heap already.
        if self._scores.get(engine) != score:
            self._scores[engine] = score
            if self._heap and self._heap[0][1] == engine:
                # It was the best one, and has got a request: its entry does not hold any more.
                heapq.heapreplace(self._heap, (score, engine))
                return
            heapq.heappush(self._heap, (score, engine))
            if len(self._heap) > _STALE_SHARE * len(self._scores) + _STALE_SLACK:
                self._heap = [(score, engine) for engine, score in self._scores.items()]
                heapq.heapify(self._heap)

    def best(self) -> int | None:
        """The engine with the smallest score, or None when none has room."""
        while self._heap:
            score, engine = self._heap[0]
            if self._scores.get(engine) == score:
                return engine
            # The engine has another score by now, which has an entry of its own, or has no room.
            heapq.heappop(self._heap)
        return None
