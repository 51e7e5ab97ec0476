"""Requests that wait, and the engine that each would get.

Guarantees: of the requests of a lane the one with the smallest rank goes first; among several lanes, the one
whose first request has the smallest rank; a request goes to the engine with the smallest score of those that
serve its lane and have room. A decision takes O(log requests + log engines), amortized. Pure.
"""

import heapq
from itertools import count

from rljob_runtime.routing.book import EngineState, RequestState
from rljob_runtime.routing.engine_heap import EngineHeap
from rljob_runtime.routing.policy import Entry, Lane, Rank
from rljob_runtime.routing.requests import RequestKey

_Waiting = tuple[Rank, int, RequestState]
_STALE_SLACK = 64
"""Entries that no longer hold beyond those that do before they are dropped."""


class Lanes:
    """See the module's guarantees."""

    def __init__(self) -> None:
        self._entries: dict[RequestKey, tuple[Entry, int]] = {}
        """Where each request waits, and the number of that entry."""
        self._heaps: dict[Lane, list[_Waiting]] = {}
        """Requests of each lane by rank; entries that no longer hold are dropped when they come to the
        top."""
        self._engines: dict[Lane, EngineHeap] = {}
        """Engines with room that serve each lane."""
        self._served: dict[int, tuple[Lane, ...]] = {}
        """The lanes that each engine serves."""
        self._numbers = count()
        self._open: dict[Lane, None] = {}
        """Lanes in which something came to wait, or an engine got room, since nothing could be placed from
        them. A dict, for its order: equal histories give equal choices."""
        self._stale = 0
        """Entries in the heaps that no longer hold."""
        self.probes = 0
        """How many first responses wait."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, request: RequestState, entry: Entry | None) -> None:
        """A request waits there from now on; None: nowhere."""
        known = self._entries.get(request.key)
        if known is not None and known[0] == entry:
            return
        if known is not None:
            del self._entries[request.key]
            self._stale += 1
            if self._stale > len(self._entries) + _STALE_SLACK:
                self._drop_stale()
        self.probes += (request.key.sample == 0) * ((entry is not None) - (known is not None))
        if entry is not None:
            number = next(self._numbers)
            self._entries[request.key] = entry, number
            heapq.heappush(self._heaps.setdefault(entry.lane, []), (entry.rank, number, request))
            self._open[entry.lane] = None

    def engine(self, engine: EngineState, lanes: tuple[Lane, ...], score: float | None) -> None:
        """An engine serves these lanes, with this score; None: it has no room."""
        served = self._served.get(engine.number, ())
        if served != lanes:
            self._serve(engine.number, served, lanes)
        for lane in lanes:
            self._engines[lane].set(engine.number, score)
            if score is not None and self._heaps.get(lane):
                self._open[lane] = None

    def _serve(self, engine: int, before: tuple[Lane, ...], lanes: tuple[Lane, ...]) -> None:
        """An engine serves other lanes than before."""
        for lane in before:
            if lane in lanes:
                continue
            if isinstance(lane, int):
                # A lane of one engine goes with it: in a long job there are many that were.
                del self._engines[lane]
            else:
                self._engines[lane].set(engine, None)
        for lane in lanes:
            if lane not in self._engines:
                self._engines[lane] = EngineHeap()
        if lanes:
            self._served[engine] = lanes
        else:
            self._served.pop(engine, None)

    def next(self) -> tuple[RequestState, int] | None:
        """The request to be placed next, and the number of its engine; None when nothing that waits has room.
        Whoever places it puts it nowhere and tells the engine's new score."""
        if not self._open:
            return None
        best: tuple[_Waiting, int] | None = None
        for lane in list(self._open):
            first = self._first(lane)
            number = self._engines[lane].best() if first is not None and lane in self._engines else None
            if first is None or number is None:
                self._open.pop(lane, None)
            elif isinstance(lane, int):
                # A lane of one engine, which serves no other: there is nothing to compare with.
                return first[2], number
            elif best is None or first[:2] < best[0][:2]:
                best = first, number
        return None if best is None else (best[0][2], best[1])

    def _drop_stale(self) -> None:
        """Else requests whose rank changes often while they wait would leave more and more entries behind."""
        kept = {lane: [each for each in heap if self._holds(each)] for lane, heap in self._heaps.items()}
        self._heaps = {lane: heap for lane, heap in kept.items() if heap}
        for heap in self._heaps.values():
            heapq.heapify(heap)
        self._stale = 0

    def _holds(self, waiting: _Waiting) -> bool:
        _, number, request = waiting
        known = self._entries.get(request.key)
        return known is not None and known[1] == number

    def _first(self, lane: Lane) -> _Waiting | None:
        heap = self._heaps.get(lane)
        while heap:
            if self._holds(heap[0]):
                return heap[0]
            heapq.heappop(heap)
            self._stale -= 1
        if heap is not None:
            # As lanes of single engines do.
            del self._heaps[lane]
        return None
