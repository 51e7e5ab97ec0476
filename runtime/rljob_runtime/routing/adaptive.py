"""Routing by length, as it becomes known: the policy of every job, unless it says otherwise.

- Every response has an estimate (`lengths`), from finished and running siblings and from earlier epochs.
- Of a large batch, what one training step takes, the longest responses begin first, as soon as they show
  (`begin_order`). Else the oldest group goes first. Nobody is held back while an engine has room.
- The responses with most to come are heavy: those from a cut on that lets both pools finish together
  (`split`). They go to the heavy pool. Where a cut does not pay, or no length is known yet, both pools take
  everything. Without a heavy pool, some engines become heavy for as long as that pays.
- A response that turns out to be long moves to the heavy engines, with its tokens (`offload`); when nothing
  waits any more, responses move from engines that will finish last to those that finish first (`levelling`).
- What the next training step waits for goes before the rest: where requests wait, into the heavy pool, and
  when engines are levelled (`deadlines`).
- A pool that finishes much earlier takes from what waits for the other one, and what runs there; so does one
  that has room while the other one has none.
- Pools are not told apart before it is known of both what their engines cost.

A single engine has nothing to divide: with it alone everything is as by least in flight, while lengths are
learned, so that it is divided as soon as a second one joins.

A plan says which engines and responses are heavy, until the next one (`plan_times`). Where there are very
many groups and engines it looks at some of them; between two plans a decision takes O(log engines).

Guarantee: what waits is placed as long as any engine has room that is not kept for long requests. Engines of
a heavy pool are never kept, others only while there are long requests. Pure.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from rljob_runtime.routing.begin_order import BeginOrder
from rljob_runtime.routing.book import Book, EngineState, GroupState, RequestState
from rljob_runtime.routing.deadlines import Deadlines
from rljob_runtime.routing.estimates import Estimates
from rljob_runtime.routing.lengths import Lengths
from rljob_runtime.routing.levelling import level, trial
from rljob_runtime.routing.lockstep import level_lockstep
from rljob_runtime.routing.offload import offload
from rljob_runtime.routing.plan_times import PlanTimes
from rljob_runtime.routing.policy import Division, Entry, Expectation, Lane, Policy
from rljob_runtime.routing.requests import Move, RequestKey
from rljob_runtime.routing.roles import Expected, Roles, comparable, decide_roles
from rljob_runtime.routing.trials import Trials

_SAMPLE = 512
"""Groups that a plan looks at; of more, every second one, or every third, and so on."""
_WINDOW = 64
"""Engines of a pool between which a plan moves requests; the next plan takes others."""
_MOVES = 64
"""Most moves to heavy engines at a time."""


class Adaptive(Policy):
    """See the module."""

    def __init__(
        self,
        longest: int,
        plan_seconds: float = 1.0,
        waits: bool = True,
        groups_per_step: int | None = None,
    ) -> None:
        """`longest`: most tokens of a response; `plan_seconds`: least time between two plans; `waits`:
        whether a training step waits for the groups whose deadline has come; `groups_per_step`: groups that a
        training step takes, None: all that there are."""
        self.eager = self._several = False
        """Whether there are several engines. A single one begins everything in the order in which it comes:
        to dispatch more than it can begin would only make groups older."""
        self.estimates = Estimates(Lengths(longest))
        self.roles = Roles()
        self._waits = waits
        self.order = BeginOrder(self.estimates.lengths, groups_per_step)
        self._deadlines = Deadlines()
        self._times = PlanTimes(plan_seconds)
        self._trials = Trials()
        self._fresh = False
        """Whether there is a plan whose moves have not been made."""
        self._comparable = True
        """Whether it is known of all pools what their engines cost, by the newest plan. Else none gets work
        of another one: what looks quicker may be slower."""
        self._relaned = False
        """Whether engines serve other lanes than they were told since the newest plan."""
        self._long: set[RequestKey] = set()
        """Responses that are heavy; they stay it."""
        self._reenter: Sequence[RequestState] = ()
        """Requests that wait and may wait elsewhere by the newest plan."""
        self._rooms: dict[int, int] = {}
        """Requests that each of the heavy engines can begin now."""
        self._kept = 0
        """Their sum."""

    @property
    def division(self) -> Division | None:
        return Division(self.roles.heavy, self._cut) if self._several else None

    @property
    def _cut(self) -> float:
        """Remaining tokens from which on a response is long; infinite where no engine is for long ones."""
        return self.roles.split.cut if self.roles.heavy else math.inf

    def expects(self, request: RequestState) -> Expectation | None:
        return Expectation(self.estimates.peek(request), self._cut) if self._several else None

    @property
    def urgent(self) -> int | None:
        """The deadline that the next training step waits for, where other groups are under way as well."""
        return self._deadlines.urgent if self._waits else None

    # Where requests wait

    @property
    def probes_first(self) -> bool:
        return self.order.longest_first

    def newcomer_room(self, book: Book) -> int:
        # What begins on a heavy pool's engines while others are full is what would wait otherwise.
        return book.room if self.roles.pooled else book.room - self._kept

    def serves(self, engine: EngineState, book: Book) -> tuple[Lane, ...]:
        return self.roles.lanes(engine.number)

    def score(self, engine: EngineState) -> float | None:
        # An engine that takes twice as long has half as many requests, and the last one where none has any.
        slowness = engine.shape.slowness
        return (engine.count * slowness + slowness - 1.0) / engine.shape.limit

    def entry(self, request: RequestState, book: Book) -> Entry | None:
        key = request.key
        total = self.estimates.total(request)
        if self.roles.heavy and total - request.tokens >= self.roles.split.cut:
            self._long.add(key)
        lane: Lane = "heavy" if self.roles.heavy and key in self._long else "any"
        # What has begun and was interrupted goes first: nothing that waits has more behind it.
        new = not request.tokens
        return Entry(lane, (request.group.request.deadline, new, *self.order.rank(request, total), *key))

    # What happens

    def engines_changed(self, book: Book) -> Iterable[RequestState]:
        self.eager = self._several = sum(1 for _ in islice(book.members(), 2)) > 1
        return ()

    def dispatched(self, group: GroupState, book: Book, now: float) -> Iterable[RequestState]:
        self._deadlines.began(group.request)
        self.estimates.began(group, len(book.groups))
        self.order.began(group)
        self._times.group_came(len(book.groups), self.roles)
        return ()

    def load_changed(self, engine: EngineState) -> None:
        if engine.number in self.roles.heavy:
            self._kept += engine.room - self._rooms[engine.number]
            self._rooms[engine.number] = engine.room
        self._times.engine_changed(engine, self.roles)

    def progressed(self, requests: Iterable[RequestState], book: Book, now: float) -> Iterable[RequestState]:
        return _waiting(self.estimates.outgrown(requests), book)

    def finished(self, request: RequestState, book: Book, now: float) -> Iterable[RequestState]:
        self.estimates.finished(request.group)
        self._long.discard(request.key)
        reordered = self.order.told(request.group)
        return _waiting(book.groups.values() if reordered else [request.group], book)

    def cancelled(self, group: GroupState, book: Book) -> Iterable[RequestState]:
        self.estimates.forget(group)
        self._deadlines.ended(group.request)
        self._long.difference_update(request.key for request in group.requests.values())
        return _waiting(book.groups.values(), book) if self.order.told(group) else ()

    # Plans

    def rescored(self, book: Book, now: float) -> Iterable[EngineState]:
        if now < self._times.next:
            relaned, self._relaned = self._relaned, False
            return book.members() if relaned else ()
        before = self.roles
        members = [engine for engine in book.members() if engine.joined]
        reordered = self._plan(members, book)
        self._times.made(now, self.roles.split.seconds, len(book.groups))
        if _same_lanes(before, self.roles) and not reordered:
            return ()
        heavy = self.roles.heavy
        self._rooms = {engine.number: engine.room for engine in members if engine.number in heavy}
        self._kept = sum(self._rooms.values())
        # The newest groups first: it is mostly they that wait, and then the others are not looked at.
        self._reenter = _waiting(reversed(book.groups.values()), book)
        return members

    def _plan(self, members: Sequence[EngineState], book: Book) -> bool:
        """Decide anew what each engine is for, and in which order requests wait; whether that has changed."""
        self._fresh = True
        self.estimates.fit_hazards()
        self._comparable = comparable(members)
        # Before a response is complete there is nothing to divide by, and no ground to move anything.
        divides = self._several and self.estimates.lengths.known and self._comparable
        sample, every = self._sample(book) if divides else ((), 1)
        reordered = self.order.plan(members, book)
        self.roles = decide_roles(self.roles, members, sample, every, self._long)
        return reordered

    def reentered(self, book: Book, now: float) -> Iterable[RequestState]:
        waiting, self._reenter = self._reenter, ()
        return waiting

    def settled(self, book: Book, now: float) -> Iterable[RequestState]:
        others = book.room - self._kept
        if self.roles.heavy and book.waiting and (others or (self.roles.pooled and book.room)):
            # What has room would have been placed: this waits for engines that are full.
            full = self.roles.full | {"heavy" if others else "fast"}
            self.roles, self._relaned = replace(self.roles, full=full), True
        return ()

    def _sample(self, book: Book) -> tuple[Collection[Expected], int]:
        """Requests and the tokens that each will still generate, of every n-th group; n."""
        every = max(1, math.ceil(len(book.groups) / _SAMPLE))
        groups = islice(book.groups.values(), self._times.plans % every, None, every)
        # Not a list of pairs, through which the garbage collector would look again and again.
        sample: dict[RequestState, float] = {}
        for group in groups:
            # What all responses together tell about each group has changed since.
            self.estimates.renew(group)
            for request in group.requests.values():
                sample[request] = self.estimates.remaining(request)
        return sample.items(), every

    # Moves

    def moves(self, book: Book, now: float) -> Iterable[Move]:
        fresh, self._fresh = self._fresh, False
        if not fresh or not self.estimates.lengths.known:
            return []
        members = [engine for engine in book.members() if engine.joined]
        heavy = [engine for engine in members if engine.number in self.roles.heavy]
        fast = self._window([engine for engine in members if engine.number not in self.roles.heavy])
        moves: list[Move] = []
        if heavy:
            known = self.estimates.remaining, self.estimates.surely_remaining
            found = offload(heavy, fast, self.roles.split.cut, known[0], _MOVES, self.urgent, known[1])
            moves = self._trials.allowed(found, book)
            self._long.update(move.request for move in moves)
        if moves or book.waiting:
            return moves
        pools = self._levelled_together(members, self._window(heavy), fast)
        levelled = [move for pool in pools if len(pool) > 1 for move in self._levelled(pool, book)]
        return [self._crossing(move, book) for move in self._trials.allowed(levelled, book)]

    def _levelled_together(
        self, members: Sequence[EngineState], heavy: Sequence[EngineState], fast: Sequence[EngineState]
    ) -> list[Sequence[EngineState]]:
        """Engines between which requests move when nothing waits. `heavy`: those for long ones, `fast`: the
        others, of each as many as one plan looks at."""
        if not self._comparable or any(engine.shape.lockstep for engine in members):
            # Ranks of one pool share their steps with each other, and not with those of the other pool.
            engines = [*heavy, *fast]
            return [[each for each in engines if each.shape.pool == pool] for pool in ("heavy", "fast")]
        if self.roles.heavy_lends or self.roles.fast_lends or any(not engine.count for engine in members):
            # One pool is done long before the other: it takes over what runs there.
            return [[*heavy, *fast]]
        return [heavy, fast]

    def _levelled(self, pool: Sequence[EngineState], book: Book) -> list[Move]:
        if all(engine.shape.lockstep for engine in pool):
            return level_lockstep(pool, self.estimates.remaining)
        remaining = self.estimates.remaining
        found = level(pool, remaining, self.urgent)
        return found or self._trials.telling(trial(pool, remaining), book)

    def _crossing(self, move: Move, book: Book) -> Move:
        """The same move; one that levels engines for long responses with others steals."""
        source = book.request(move.request).engine
        assert source is not None
        crosses = (source.number in self.roles.heavy) != (move.engine in self.roles.heavy)
        return move._replace(reason="stolen") if crosses and move.reason == "levelled" else move

    def _window(self, engines: Sequence[EngineState]) -> Sequence[EngineState]:
        """The engines that this plan moves requests from and between. Windows overlap, so that in time all
        engines are levelled."""
        if len(engines) <= _WINDOW:
            return engines
        first = self._times.plans * (_WINDOW - _WINDOW // 4) % len(engines)
        return [*engines[first : first + _WINDOW], *engines[: max(0, first + _WINDOW - len(engines))]]


def _waiting(groups: Iterable[GroupState], book: Book) -> Sequence[RequestState]:
    """The requests of these groups that wait. Looks no further when it has found all that wait at all."""
    if not book.waiting:
        return ()
    waiting = (request for group in groups for request in group.requests.values() if request.waits)
    return list(islice(waiting, book.waiting))


def _same_lanes(one: Roles, other: Roles) -> bool:
    """Whether all requests and engines have the same lanes by both."""
    return (one.heavy, one.split.cut, one.heavy_lends, one.fast_lends) == (
        other.heavy, other.split.cut, other.heavy_lends, other.fast_lends,
    )  # fmt: skip
