"""Routing by length, as it becomes known: the policy of a job with a heavy pool, unless it says otherwise.

- Every response has an estimate (`lengths`), from finished and running siblings and from earlier epochs.
- In a large batch the first response of each group, its probe, begins first; then those that are expected to
  be longest. Else the oldest group goes first. Nobody is held back while an engine has room.
- The responses with most to come are heavy: those from a cut on that lets both pools finish together
  (`split`). They go to the heavy pool. Without one, some engines become heavy for as long as that pays.
- A response that turns out to be long moves to the heavy engines, with its tokens; when nothing waits any
  more, responses move from engines that will finish last to those that finish first (`rebalance`).
- A pool that finishes much earlier takes from what waits for the other one, and what runs there; so does one
  that has room while the other one has none.

Plans are made anew at most every `plan_seconds`, less often for many groups, and look at some of the groups
and engines where there are very many; between two plans a decision takes O(log engines). Guarantee: what
waits is placed as long as any engine has room that is not kept for long requests, and engines are kept only
while there are some. Pure.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import islice

from rljob_runtime.routing.book import Book, EngineState, GroupState, RequestState
from rljob_runtime.routing.drain import Load
from rljob_runtime.routing.lengths import Lengths
from rljob_runtime.routing.policy import Entry, Lane, Policy
from rljob_runtime.routing.rebalance import Outlook, capacity, into_pools, level
from rljob_runtime.routing.requests import Move, RequestKey
from rljob_runtime.routing.split import Split, histogram, split_engines, split_pools

_PLAN_GROUPS = 2500
"""For each so many groups under way the time between two plans grows by a second."""
_PLANS = 100
"""Plans in the time until all that is under way is finished, at most: where responses take hours there is no
hurry."""
_SAMPLE = 512
"""Groups that a plan looks at; of more, every second one, or every third, and so on."""
_WINDOW = 64
"""Engines of a pool between which a plan moves requests; the next plan takes others."""
_GROWN = 1.25
"""Factor by which the longest running response of a group grows until the group's estimate is made anew."""
_MOVES = 64
"""Most moves into pools at a time."""
_LENDS = 0.8
"""A pool takes from the other one's lane while it finishes within this part of the other one's time."""
_WAVES = 6
"""Longest first is the order where this many times more requests are under way than run at a time. With fewer
the first to come are most of all, and the order gains less than the chance of one draw of lengths."""

_NO_SPLIT = Split(0, math.inf, 0.0, 0.0)


_Expected = tuple[RequestState, float]
"""A request, and the tokens that it is expected to generate still."""


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
        self._plans = 0
        self._outlook = Outlook(lambda request: self._total(request))
        self._fresh = False
        """Whether there is a plan whose moves have not been made."""
        self._longest_first = False
        """Whether the order is by expected length."""
        self._long: set[RequestKey] = set()
        """Responses that are heavy; they stay it."""
        self._full: frozenset[str] = frozenset()
        """Pools that had no room for what waited, by the newest plan."""
        self._pooled = False
        """Whether there is a heavy pool."""
        self._reenter: list[RequestState] = []
        """Requests that wait and may wait elsewhere by the newest plan."""
        self._totals: dict[int, tuple[float, float]] = {}
        """Mean and standard deviation of the logarithm of each group's lengths, since they last changed."""
        self._grown: dict[int, float] = {}
        """Tokens from which on a response of each group changes its estimate."""
        self._joined: set[int] = set()
        """Engines that take requests."""
        self._rooms: dict[int, int] = {}
        """Requests that each of the heavy engines can begin now."""
        self._kept = 0
        """Their sum."""

    # Where requests wait

    def newcomer_room(self, book: Book) -> int:
        return book.room if self._heavy_lends else book.room - self._kept

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

    def load_changed(self, engine: EngineState) -> None:
        if engine.number in self.heavy:
            self._kept += engine.room - self._rooms.get(engine.number, 0)
            self._rooms[engine.number] = engine.room
        if engine.joined != (engine.number in self._joined):
            (self._joined.add if engine.joined else self._joined.discard)(engine.number)
            if self._joined <= self.heavy or (self.heavy and self._joined.isdisjoint(self.heavy)):
                # Nobody is left that takes what waits for one of the two kinds.
                self._next_plan = -math.inf

    def progressed(self, requests: Iterable[RequestState], book: Book, now: float) -> Iterable[RequestState]:
        groups = {
            request.key.uid: request.group
            for request in requests
            if request.tokens >= self._grown.get(request.key.uid, 0.0)
        }
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
        self._grown.pop(group.request.uid, None)
        self._long.difference_update(request.key for request in group.requests.values())
        return ()

    def _waiting(self, groups: Iterable[GroupState]) -> list[RequestState]:
        return [request for group in groups for request in group.requests.values() if request.waits]

    # Plans

    def rescored(self, book: Book, now: float) -> Iterable[EngineState]:
        if now < self._next_plan:
            return ()
        self._plans += 1
        self._fresh, before = True, self._state
        members = [engine for engine in book.members() if engine.joined]
        sample, every = self._sample(book)
        # It stays until everything has begun: what was put off must not be put off to the end.
        still = self._longest_first and book.waiting > 0
        self._longest_first = still or self._many_waves(members, book)
        self._decide_roles(members, sample, every)
        self._full = frozenset(pool for pool, room in book.rooms.items() if room == 0 and book.waiting)
        pause = max(self._plan_seconds, self.split.seconds / _PLANS, len(book.groups) / _PLAN_GROUPS)
        self._next_plan = now + pause
        if before == self._state:
            return ()
        self._rooms = {engine.number: engine.room for engine in members if engine.number in self.heavy}
        self._kept = sum(self._rooms.values())
        self._reenter = self._waiting(book.groups.values()) if book.waiting else []
        return members

    def reentered(self, book: Book, now: float) -> Iterable[RequestState]:
        waiting, self._reenter = self._reenter, []
        return waiting

    def _sample(self, book: Book) -> tuple[list[_Expected], int]:
        """Requests and the tokens that each will still generate, of every n-th group; n."""
        every = max(1, math.ceil(len(book.groups) / _SAMPLE))
        groups = islice(book.groups.values(), self._plans % every, None, every)
        sample: list[_Expected] = []
        for group in groups:
            # What all responses together tell about each group has changed since.
            self._totals.pop(group.request.uid, None)
            sample += ((request, self._outlook.remaining(request)) for request in group.requests.values())
        return sample, every

    @property
    def _state(self) -> tuple[object, ...]:
        """All that lanes and entries depend on, beside the requests."""
        return self.heavy, self._heavy_lends, self._fast_lends, self.split.cut, self._longest_first

    def _many_waves(self, members: list[EngineState], book: Book) -> bool:
        """Whether so many requests are under way that their order matters, and engines hold as many long ones
        at a time as they hold others: where the KV cache is the limit, the longest together drive each other
        out of it."""
        under_way = book.waiting + sum(len(engine.running) for engine in book.engines.values())
        if len(members) < 2 or under_way < _WAVES * sum(engine.shape.limit for engine in members):
            return False
        mean, sd = self.lengths.mean, self.lengths.sd
        prompt_tokens = next(iter(book.groups.values())).request.prompt_tokens if book.groups else 0
        expected = math.exp(mean + sd * sd / 2) + prompt_tokens
        return all(
            engine.shape.kv_tokens is None or engine.shape.limit * expected <= engine.shape.kv_tokens
            for engine in members
        )

    def _decide_roles(self, members: list[EngineState], sample: list[_Expected], every: int) -> None:
        heavy = [engine for engine in members if engine.shape.pool == "heavy"]
        fast = [engine for engine in members if engine.shape.pool != "heavy"]
        self._pooled = bool(heavy)
        counted = histogram((remaining, request.kv_tokens) for request, remaining in sample)
        loads = [load._replace(number=load.number * every) for load in counted]
        if not members or not loads:
            self.split, self.heavy = _NO_SPLIT, frozenset()
        elif heavy:
            self.split = split_pools(loads, [*map(capacity, heavy)], [*map(capacity, fast)])
            self.heavy = frozenset(engine.number for engine in heavy) if fast else frozenset()
        else:
            self._split_fast(fast, loads, sample)

    def _split_fast(self, engines: list[EngineState], loads: list[Load], sample: list[_Expected]) -> None:
        """Without a heavy pool: engines that run long requests stay heavy until these have ended."""
        held = frozenset(
            engine.number
            for engine in engines
            if engine.number in self.heavy and not self._long.isdisjoint(engine.running)
        )
        found = split_engines(loads, [*map(capacity, engines)])
        # Never all of them: the others have to be taken by somebody.
        if len(held) < found.heavy or not held or len(held) == len(engines):
            self.split = found
            self.heavy = self._choose_heavy(engines, held, sample)
        else:
            self.heavy = held

    def _choose_heavy(
        self, engines: list[EngineState], held: frozenset[int], sample: list[_Expected]
    ) -> frozenset[int]:
        """Those that are heavy and have to stay it, then the engines that have most to do with long requests
        already, and least with others."""
        long: dict[int, float] = {}
        for request, remaining in sample:
            if request.engine is not None and remaining >= self.split.cut:
                number = request.engine.number
                long[number] = long.get(number, 0.0) + remaining

        def fit(engine: EngineState) -> tuple[bool, float, int, int]:
            number = engine.number
            return number not in held, -long.get(number, 0.0), engine.count, number

        return frozenset(engine.number for engine in sorted(engines, key=fit)[: self.split.heavy])

    @property
    def _heavy_lends(self) -> bool:
        early = self.split.heavy_seconds < _LENDS * self.split.fast_seconds
        return self._pooled and (early or "fast" in self._full)

    @property
    def _fast_lends(self) -> bool:
        return self.split.fast_seconds < _LENDS * self.split.heavy_seconds or "heavy" in self._full

    # Moves

    def moves(self, book: Book, now: float) -> Iterable[Move]:
        if not self._fresh:
            return []
        self._fresh = False
        members = [engine for engine in book.members() if engine.joined]
        heavy = [engine for engine in members if engine.number in self.heavy]
        fast = self._window([engine for engine in members if engine.number not in self.heavy])
        moves: list[Move] = []
        if heavy:
            moves = into_pools(heavy, fast, self.split.cut, self._outlook, _MOVES)
            self._long.update(move.request for move in moves)
        if moves or book.waiting:
            return moves
        pools: tuple[Sequence[EngineState], ...] = (self._window(heavy), fast)
        if self._heavy_lends or self._fast_lends or any(not engine.count for engine in members):
            # One pool is done long before the other: it takes over what runs there.
            pools = ([*pools[0], *fast],)
        return [move for pool in pools if len(pool) > 1 for move in level(pool, self._outlook)]

    def _window(self, engines: Sequence[EngineState]) -> Sequence[EngineState]:
        """The engines that this plan moves requests from and between. Windows overlap, so that in time all
        engines are levelled."""
        if len(engines) <= _WINDOW:
            return engines
        first = self._plans * (_WINDOW - _WINDOW // 4) % len(engines)
        return [*engines[first : first + _WINDOW], *engines[: max(0, first + _WINDOW - len(engines))]]

    def _total(self, request: RequestState) -> float:
        uid = request.key.uid
        known = self._totals.get(uid)
        if known is None:
            group = request.group
            known = self._totals[uid] = self.lengths.group(group)
            most = max((each.tokens for each in group.requests.values()), default=0)
            self._grown[uid] = max(math.exp(known[0]), _GROWN * most)
        return self.lengths.total_of(request, *known)
