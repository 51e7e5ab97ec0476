"""Routing by length, as it becomes known: the policy of a job with a heavy pool, unless it says otherwise.

- Every response has an estimate (`lengths`), from finished and running siblings and from earlier epochs.
- In a large batch the first response of each group, its probe, begins first; then those that are expected to
  be longest. Else the oldest group goes first. Nobody is held back while an engine has room.
- The responses with most to come are heavy: those from a cut on that lets both pools finish together
  (`split`). They go to the heavy pool. Without one, some engines become heavy for as long as that pays.
- A response that turns out to be long moves to the heavy engines, with its tokens; when nothing waits any
  more, responses move from engines that will finish last to those that finish first (`rebalance`).
- A pool that finishes much earlier takes from what waits for the other one.

Plans are made anew at most every `plan_seconds`, and less often for many requests; between two plans a
decision takes O(log engines). Guarantee: what waits is placed as long as any engine has room that is not kept
for long requests, and engines are kept only while there are some. Pure.
"""

import math
from collections.abc import Iterable
from itertools import chain

from rljob_runtime.routing.book import Book, EngineState, GroupState, RequestState
from rljob_runtime.routing.drain import Load
from rljob_runtime.routing.lengths import Lengths
from rljob_runtime.routing.policy import Entry, Lane, Policy
from rljob_runtime.routing.rebalance import Outlook, capacity, into_pools, level
from rljob_runtime.routing.requests import Move, RequestKey
from rljob_runtime.routing.split import Split, histogram, split_engines, split_pools

_PLAN_REQUESTS = 10_000
"""For each so many requests under way the time between two plans grows by a second: a plan looks at all."""
_PLANS = 100
"""Plans in the time until all that is under way is finished, at most: where responses take hours there is no
hurry."""
_MOVES = 64
"""Most moves into pools at a time."""
_LENDS = 0.8
"""A pool takes from the other one's lane while it finishes within this part of the other one's time."""
_WAVES = 6
"""Longest first is the order where this many times more requests are under way than run at a time. With fewer
the first to come are most of all, and the order gains less than the chance of one draw of lengths."""

_NO_SPLIT = Split(0, math.inf, 0.0, 0.0)


class Adaptive(Policy):
    """See the module."""

    eager = True

    def __init__(self, longest: int, plan_seconds: float = 1.0) -> None:
        """`longest`: most tokens of a response; `plan_seconds`: least time between two plans."""
        self.lengths = Lengths(longest)
        self.split = _NO_SPLIT
        self.heavy: frozenset[int] = frozenset()
        """The engines that run long requests alone."""
        self._plan_seconds = plan_seconds
        self._next_plan = -math.inf
        """When the next plan may be made."""
        self._outlook = Outlook({})
        self._fresh = False
        """Whether there is a plan whose moves have not been made."""
        self._longest_first = False
        """Whether the order is by expected length."""
        self._long: set[RequestKey] = set()
        """Responses that are heavy; they stay it."""
        self._pooled = False
        """Whether there is a heavy pool."""
        self._reenter: list[RequestState] = []
        """Requests that wait and may wait elsewhere by the newest plan."""
        self._totals: dict[int, tuple[float, float]] = {}
        """Mean and standard deviation of the logarithm of each group's lengths, since they last changed."""

    # Where requests wait

    def newcomer_room(self, book: Book) -> int:
        kept = (book.engines[number].room for number in self.heavy if number in book.engines)
        return book.room - sum(kept) if self.heavy and not self._heavy_lends else book.room

    def serves(self, engine: EngineState, book: Book) -> tuple[Lane, ...]:
        if engine.number in self.heavy:
            return ("heavy", "any") if self._heavy_lends else ("heavy",)
        return ("any", "heavy") if self._fast_lends else ("any",)

    def entry(self, request: RequestState, book: Book) -> Entry | None:
        key = request.key
        total = self._total(request)
        if self.heavy and total - request.tokens >= self.split.cut:
            self._long.add(key)
        lane: Lane = "heavy" if self.heavy and key in self._long else "any"
        # What has begun and was interrupted goes first: nothing that waits has more behind it.
        stage, order = (0 if request.tokens else 2), 0.0
        if self._longest_first:
            order = -total
            if key.sample == 0 and not request.tokens:
                stage, order = 1, 0.0
        return Entry(lane, (request.group.request.deadline, stage, order, *key))

    # What happens

    def engines_changed(self, book: Book) -> Iterable[RequestState]:
        self._next_plan = -math.inf
        return ()

    def progressed(self, requests: Iterable[RequestState], book: Book, now: float) -> Iterable[RequestState]:
        groups = {request.key.uid: request.group for request in requests}
        for uid in groups:
            self._totals.pop(uid, None)
        return self._waiting(groups.values()) if book.waiting else ()

    def finished(self, request: RequestState, book: Book, now: float) -> Iterable[RequestState]:
        self.lengths.finished(request.group)
        self._long.discard(request.key)
        self._totals.pop(request.key.uid, None)
        return self._waiting([request.group])

    def cancelled(self, group: GroupState, book: Book) -> Iterable[RequestState]:
        self._totals.pop(group.request.uid, None)
        self._long.difference_update(request.key for request in group.requests.values())
        return ()

    def _waiting(self, groups: Iterable[GroupState]) -> list[RequestState]:
        return [request for group in groups for request in group.requests.values() if request.waits]

    # Plans

    def rescored(self, book: Book, now: float) -> Iterable[EngineState]:
        if now < self._next_plan:
            return ()
        requests = list(chain.from_iterable(group.requests.values() for group in book.groups.values()))
        remaining = {request.key: self._total(request) - request.tokens for request in requests}
        self._outlook, self._fresh = Outlook(remaining), True
        members = [engine for engine in book.members() if engine.joined]
        before = self._state
        # It stays until everything has begun: what was put off must not be put off to the end.
        still = self._longest_first and book.waiting > 0
        self._longest_first = still or self._many_waves(members, requests)
        self._decide_roles(members, requests, remaining)
        pause = max(self._plan_seconds, self.split.seconds / _PLANS, len(requests) / _PLAN_REQUESTS)
        self._next_plan = now + pause
        if before == self._state:
            return ()
        self._reenter = [request for request in requests if request.waits]
        return members

    def reentered(self, book: Book, now: float) -> Iterable[RequestState]:
        waiting, self._reenter = self._reenter, []
        return waiting

    @property
    def _state(self) -> tuple[object, ...]:
        """All that lanes and entries depend on, beside the requests."""
        return self.heavy, self._heavy_lends, self._fast_lends, self.split.cut, self._longest_first

    def _many_waves(self, members: list[EngineState], requests: list[RequestState]) -> bool:
        """Whether so many requests are under way that their order matters, and engines hold as many long ones
        at a time as they hold others: where the KV cache is the limit, the longest together drive each other
        out of it."""
        if len(members) < 2 or len(requests) < _WAVES * sum(engine.shape.limit for engine in members):
            return False
        mean, sd = self.lengths.mean, self.lengths.sd
        expected = math.exp(mean + sd * sd / 2) + requests[0].group.request.prompt_tokens
        return all(
            engine.shape.kv_tokens is None or engine.shape.limit * expected <= engine.shape.kv_tokens
            for engine in members
        )

    def _decide_roles(
        self, members: list[EngineState], requests: list[RequestState], remaining: dict[RequestKey, float]
    ) -> None:
        self._pooled = any(engine.shape.pool == "heavy" for engine in members)
        loads = histogram((remaining[request.key], request.kv_tokens) for request in requests)
        heavy = [engine for engine in members if engine.shape.pool == "heavy"]
        fast = [engine for engine in members if engine.shape.pool != "heavy"]
        if not members or not loads:
            self.split, self.heavy = _NO_SPLIT, frozenset()
        elif heavy:
            self.split = split_pools(loads, [*map(capacity, heavy)], [*map(capacity, fast)])
            self.heavy = frozenset(engine.number for engine in heavy) if fast else frozenset()
        else:
            self._split_fast(fast, loads, remaining)

    def _split_fast(
        self, engines: list[EngineState], loads: list[Load], remaining: dict[RequestKey, float]
    ) -> None:
        """Without a heavy pool: engines that run long requests stay heavy until these have ended."""
        held = {engine.number for engine in engines if self._long & engine.running.keys()} & self.heavy
        found = split_engines(loads, [*map(capacity, engines)])
        if len(held) < found.heavy or not held:
            self.split = found
            self.heavy = self._choose_heavy(engines, remaining)
        else:
            self.heavy = frozenset(held)

    def _choose_heavy(self, engines: list[EngineState], remaining: dict[RequestKey, float]) -> frozenset[int]:
        """The engines that have most to do with long requests already, and least with others."""

        def fit(engine: EngineState) -> tuple[float, int, int]:
            long = sum(remaining[key] for key in engine.running if remaining[key] >= self.split.cut)
            return -long, engine.count, engine.number

        return frozenset(engine.number for engine in sorted(engines, key=fit)[: self.split.heavy])

    @property
    def _heavy_lends(self) -> bool:
        return self.split.heavy_seconds < _LENDS * self.split.fast_seconds and self._pooled

    @property
    def _fast_lends(self) -> bool:
        return self.split.fast_seconds < _LENDS * self.split.heavy_seconds

    # Moves

    def moves(self, book: Book, now: float) -> Iterable[Move]:
        if not self._fresh:
            return []
        self._fresh = False
        members = [engine for engine in book.members() if engine.joined]
        heavy = [engine for engine in members if engine.number in self.heavy]
        fast = [engine for engine in members if engine.number not in self.heavy]
        moves: list[Move] = []
        if heavy:
            moves = into_pools(heavy, fast, self.split.cut, self._outlook, _MOVES)
            self._long.update(move.request for move in moves)
        if moves or book.waiting:
            return moves
        return [move for pool in (heavy, fast) if len(pool) > 1 for move in level(pool, self._outlook)]

    def _total(self, request: RequestState) -> float:
        uid = request.key.uid
        known = self._totals.get(uid)
        if known is None:
            known = self._totals[uid] = self.lengths.group(request.group)
        return self.lengths.total_of(request, *known)
