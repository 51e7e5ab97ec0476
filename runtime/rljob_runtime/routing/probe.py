"""P-DSR, a published method of routing by length, as it was published: one response of each group, its probe,
runs first, and its length says to which pool the others go.

All probes run on the fast pool. Groups that are dispatched one after the other are a cohort. When all its
probes have ended the groups are sorted by the lengths of their probes. The longest share of them goes to the
heavy pool; the others stay on the fast pool, with a cap: a factor times the cut, which is the shortest probe
of those that went to the heavy pool. A response above the cap trips: it is taken out, and begins anew on the
heavy pool.

Guarantees: a response that is dispatched is held back only while a probe of its cohort has not ended, or the
fast pool has work for every place. A cohort never waits for groups that are not dispatched: admission may let
none begin before a group of this very cohort is trained. While a pool has no engine the other one takes its
requests, and nothing trips. Pure.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rljob_runtime.routing.book import Book, EngineState, GroupState, RequestState
from rljob_runtime.routing.policy import Division, Entry, Expectation, Lane, Policy
from rljob_runtime.routing.requests import Move, RequestKey


@dataclass(frozen=True)
class ProbeSettings:
    """The constants of the method; the defaults are the published ones."""

    cohort_groups: int
    """Groups whose probes are compared with each other."""
    probes: int = 1
    """Responses of a group that run first; the longest of them counts."""
    heavy_share: float = 0.2
    """Part of a cohort's groups that go to the heavy pool."""
    cap_factor: float = 1.5
    """The cap is this times the cut."""
    restart: bool = True
    """Whether a response that trips begins anew; else it goes on with its tokens."""


@dataclass(eq=False)
class _Cohort:
    plans: "dict[int, _Plan]" = field(default_factory=dict)
    """Its groups, by uid, in the order of their dispatch."""
    full: bool = False
    """Whether it takes no further groups."""
    probing: int = 0
    """Probes that have not ended."""


@dataclass(eq=False)
class _Plan:
    """What is decided for a group."""

    group: GroupState
    cohort: _Cohort
    probing: int
    """Its probes that have not ended."""
    length: int = 0
    """Tokens of its longest probe that has ended."""
    decided: bool = False
    heavy: bool = False
    """Whether it goes to the heavy pool."""
    cut: float = math.inf
    """The shortest probe of its cohort that went to the heavy pool."""
    cap: float = math.inf
    """Most tokens of a response on the fast pool."""
    tripped: set[int] = field(default_factory=set)
    """Responses that are to go on on the heavy pool."""
    free: set[int] = field(default_factory=set)
    """Responses above the cap that may stay: there was no heavy engine when they came to it."""


def heavy_count(prompts: int, share: float) -> int:
    """How many of a cohort's prompts are the `share` that goes to the heavy pool: to the nearest whole
    number, halves up."""
    return math.floor(share * prompts + 0.5)


def longest(lengths: list[int], share: float) -> list[int]:
    """The places in `lengths` of the longest `share` of them; the longest first, of equals the one that comes
    first."""
    count = heavy_count(len(lengths), share)
    return sorted(range(len(lengths)), key=lambda place: -lengths[place])[:count]


class ProbePolicy(Policy):
    """See the module."""

    eager = True

    def __init__(self, settings: ProbeSettings) -> None:
        self.settings = settings
        self._plans: dict[int, _Plan] = {}
        """Of each group that is under way, by uid."""
        self._newest = _Cohort()
        """The cohort of the next group."""
        self._cut = math.inf
        """The newest cohort's cut."""
        self._heavy: frozenset[int] = frozenset()
        """The engines of the heavy pool."""
        self._empty: frozenset[str] = frozenset(("fast", "heavy"))
        """Pools without an engine."""
        self._relaned = False
        """Whether engines serve other lanes than they were told."""
        self._tripping: dict[RequestKey, None] = {}
        """Running responses that are to be taken out."""

    @property
    def division(self) -> Division:
        return Division(self._heavy, self._cut)

    def expects(self, request: RequestState) -> Expectation | None:
        plan = self._plans[request.key.uid]
        # A probe is what tells of the others.
        probe = request.key.sample < self.settings.probes
        return None if probe or not plan.decided else Expectation(plan.length, plan.cut)

    def newcomer_room(self, book: Book) -> int:
        # Rounded up: where fewer places are left than a group has probes, its first one begins.
        return -(-self._fast_room(book) // self.settings.probes)

    def serves(self, engine: EngineState, book: Book) -> tuple[Lane, ...]:
        return ("fast", "heavy") if self._empty else (_lane(engine),)

    def entry(self, request: RequestState, book: Book) -> Entry | None:
        plan = self._plans[request.key.uid]
        sample = request.key.sample
        if not plan.decided and sample >= self.settings.probes:
            return None
        over = request.tokens > plan.cap and sample not in plan.free
        heavy = plan.heavy or sample in plan.tripped or over
        return Entry("heavy" if heavy else "fast", request.key)

    def engines_changed(self, book: Book) -> Iterable[RequestState]:
        there = {_lane(engine) for engine in book.members()}
        self._heavy = frozenset(engine.number for engine in book.members() if _lane(engine) == "heavy")
        empty = frozenset({"fast", "heavy"} - there)
        self._relaned |= empty != self._empty
        self._empty = empty
        return ()

    def rescored(self, book: Book, now: float) -> Iterable[EngineState]:
        relaned, self._relaned = self._relaned, False
        return book.members() if relaned else ()

    def dispatched(self, group: GroupState, book: Book, now: float) -> Iterable[RequestState]:
        cohort, probes = self._newest, self.settings.probes
        plan = self._plans[group.request.uid] = _Plan(group, cohort, probes)
        cohort.plans[group.request.uid] = plan
        cohort.probing += probes
        if len(cohort.plans) == self.settings.cohort_groups:
            cohort.full = True
            self._newest = _Cohort()
        return ()

    def finished(self, request: RequestState, book: Book, now: float) -> Iterable[RequestState]:
        self._tripping.pop(request.key, None)
        plan = self._plans[request.key.uid]
        if plan.decided or request.key.sample >= self.settings.probes:
            return ()
        plan.length = max(plan.length, request.group.finished[-1])
        plan.probing -= 1
        plan.cohort.probing -= 1
        return self._decide_if_full(plan.cohort)

    def cancelled(self, group: GroupState, book: Book) -> Iterable[RequestState]:
        plan = self._plans.pop(group.request.uid)
        for request in group.requests.values():
            self._tripping.pop(request.key, None)
        if plan.decided:
            return ()
        del plan.cohort.plans[group.request.uid]
        plan.cohort.probing -= plan.probing
        return self._decide_if_full(plan.cohort)

    def settled(self, book: Book, now: float) -> Iterable[RequestState]:
        cohort = self._newest
        # The fast pool would stand idle, and no group has come that could begin: others may come only after
        # these are trained.
        if cohort.plans and cohort.probing == 0 and self._fast_room(book) > 0:
            self._newest = _Cohort()
            return self._decide(cohort)
        return ()

    def progressed(self, requests: Iterable[RequestState], book: Book, now: float) -> Iterable[RequestState]:
        for request in requests:
            plan, sample = self._plans[request.key.uid], request.key.sample
            known = sample in plan.free or sample in plan.tripped
            if request.tokens > plan.cap and not known:
                if "heavy" in self._empty:
                    plan.free.add(sample)
                else:
                    plan.tripped.add(sample)
                    self._tripping[request.key] = None
        return ()

    def moves(self, book: Book, now: float) -> Iterator[Move]:
        tripping, self._tripping = self._tripping, {}
        for key in tripping:
            engine = book.request(key).engine
            # One that has left for another reason may be on a heavy engine by now.
            if engine is not None and _lane(engine) == "fast":
                # To no engine in particular: it waits for the heavy pool behind those that wait already.
                yield Move(key, None, self.settings.restart, "tripped")

    def _fast_room(self, book: Book) -> int:
        return book.room if "fast" in self._empty else book.rooms.get("fast", 0)

    def _decide_if_full(self, cohort: _Cohort) -> Iterable[RequestState]:
        return self._decide(cohort) if cohort.full and cohort.probing == 0 else ()

    def _decide(self, cohort: _Cohort) -> list[RequestState]:
        """All probes of a cohort have ended. Returns the responses that were held back."""
        plans, share = list(cohort.plans.values()), self.settings.heavy_share
        chosen = [plans[place] for place in longest([plan.length for plan in plans], share)]
        # A cohort that is too small to have a heavy share has no cut, and no cap.
        self._cut = cut = chosen[-1].length if chosen else math.inf
        for plan in plans:
            plan.decided, plan.cut, plan.cap = True, cut, self.settings.cap_factor * cut
        for plan in chosen:
            plan.heavy, plan.cap = True, math.inf
        return [request for plan in plans for request in plan.group.requests.values()]


def _lane(engine: EngineState) -> Lane:
    return "heavy" if engine.shape.pool == "heavy" else "fast"
