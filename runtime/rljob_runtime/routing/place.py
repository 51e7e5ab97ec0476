"""Which engine gets the next request: the protocol of a placement policy, and the least-loaded policy.

A policy is told of each change of an engine's load and asked for an engine. It keeps what it needs to answer
without looking at all engines: with a thousand of them and thousands of requests per second, a decision that
visits each engine would take the driver's whole core.

Guarantees of every policy: never an engine that is full, never one that takes no new requests; equal
histories give equal choices. Pure.
"""

import heapq
from typing import NamedTuple, Protocol

_STALE_SHARE = 3
"""Entries in the heap for each engine with room before it is rebuilt."""
_STALE_SLACK = 64
"""Entries that the heap may hold beyond that, so that small heaps are not rebuilt all the time."""


class EngineLoad(NamedTuple):
    """What a policy knows of an engine."""

    running: int
    """Requests placed on it that have not ended."""
    limit: int
    """Most requests that it runs at a time."""


class Placement(Protocol):
    """A placement policy. Engines are known by numbers; those that came earlier have smaller ones."""

    def changed(self, engine: int, load: EngineLoad | None) -> None:
        """The load of an engine is now `load`; None: it takes no new requests (until it has a load again)."""
        ...

    def choose(self) -> int | None:
        """The engine for the next request, or None when none has room. Choosing counts nothing: whoever
        places the request tells the engine's new load by `changed`."""
        ...


class LeastLoaded:
    """The engine with the smallest share of its limit in use; among equals the one that came first.

    By share and not by number of requests, because engines differ in size: of two engines with 8 requests
    each the one that can run 64 has more room than the one that can run 16.

    `changed` takes O(log engines) and `choose` O(1), both amortized: a heap of (share, engine) in which
    entries that no longer hold are left until they come to the top or outnumber those that hold.
    """

    def __init__(self) -> None:
        self._shares: dict[int, float] = {}
        """Share in use of each engine that has room."""
        self._heap: list[tuple[float, int]] = []
        """Has an entry for each item of `_shares`, and stale ones."""

    def changed(self, engine: int, load: EngineLoad | None) -> None:
        if load is None or load.running >= load.limit:
            self._shares.pop(engine, None)
            return
        share = load.running / load.limit
        # The same share has its entry in the heap already.
        if self._shares.get(engine) != share:
            self._shares[engine] = share
            heapq.heappush(self._heap, (share, engine))
            if len(self._heap) > _STALE_SHARE * len(self._shares) + _STALE_SLACK:
                self._heap = [(share, engine) for engine, share in self._shares.items()]
                heapq.heapify(self._heap)

    def choose(self) -> int | None:
        while self._heap:
            share, engine = self._heap[0]
            if self._shares.get(engine) == share:
                return engine
            # The engine has another share by now, which has an entry of its own, or has no room.
            heapq.heappop(self._heap)
        return None
