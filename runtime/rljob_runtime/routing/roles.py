"""Which engines are for long responses, from which length on a response is long, and which pool helps out the
other one: what adaptive routing decides with each plan.

Pure.
"""

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from rljob_runtime.routing.book import EngineState, RequestState
from rljob_runtime.routing.drain import Load
from rljob_runtime.routing.offload import SLACK
from rljob_runtime.routing.policy import Lane
from rljob_runtime.routing.requests import EngineShape, RequestKey
from rljob_runtime.routing.split import (
    NO_SPLIT,
    Counts,
    Split,
    count,
    merged,
    shared,
    split_engines,
    split_pools,
)

_LENDS = 0.8
"""A pool takes from the other one's lane while it finishes within this part of the other one's time."""

Expected = tuple[RequestState, float]
"""A request, and the tokens that it is expected to generate still."""


@dataclass(frozen=True)
class Roles:
    """What is decided."""

    split: Split = NO_SPLIT
    heavy: frozenset[int] = frozenset()
    """The engines that run long requests alone."""
    pooled: bool = False
    """Whether there is a heavy pool."""
    full: frozenset[str] = frozenset()
    """Engines that have had no room for what waits for them since the plan, while others had: heavy or fast
    ones."""
    ends: tuple[float, float] = (0.0, 0.0)
    """Seconds until heavy engines, and the others, have finished what is theirs now. The plan's own seconds
    take every long response for one of the heavy engines, and some of them stay where they are."""

    @cached_property
    def heavy_lends(self) -> bool:
        """Whether heavy engines take what waits for the others. Engines that are heavy only for a while do
        not: they would not be free for what they are kept for."""
        return self.pooled and (self.ends[0] < _LENDS * self.ends[1] or "fast" in self.full)

    @cached_property
    def fast_lends(self) -> bool:
        """Whether the others take what waits for heavy engines."""
        return self.ends[1] < _LENDS * self.ends[0] or "heavy" in self.full

    def lanes(self, engine: int) -> tuple[Lane, ...]:
        """The lanes from which an engine takes requests."""
        if engine in self.heavy:
            return ("heavy", "any") if self.heavy_lends else ("heavy",)
        return ("any", "heavy") if self.fast_lends else ("any",)


def comparable(engines: Sequence[EngineState]) -> bool:
    """Whether it is known of all of these engines what they cost, or all are of one pool."""
    return len({engine.shape.pool for engine in engines}) < 2 or all(
        engine.shape.cost.measured for engine in engines
    )


def decide_roles(
    before: Roles,
    engines: Sequence[EngineState],
    sample: Collection[Expected],
    every: int,
    long: Set[RequestKey],
) -> Roles:
    """The roles from now on. `before`: those until now. `engines`: all that take requests. `sample`: the
    requests of every `every`-th group. `long`: those that count as long since an earlier plan."""
    ordered = sorted(engines, key=lambda engine: engine.shape.slowness)
    heavy = [engine for engine in ordered if engine.shape.pool == "heavy"]
    fast = [engine for engine in ordered if engine.shape.pool != "heavy"]
    parts = _counted(sample)
    loads = _scaled(merged(*parts), every)
    if not engines or not loads:
        return Roles(pooled=bool(heavy))
    if heavy:
        split = split_pools(loads, _shapes(heavy), _shapes(fast))
        if not split.heavy:
            # Both pools take everything.
            return Roles(split, pooled=True)
        numbers = frozenset(engine.number for engine in heavy)
        return Roles(split, numbers, True, ends=_ends(split.cut, heavy, fast, parts, every))
    if all(engine.shape.lockstep for engine in fast):
        # An engine that runs fewer takes its steps no sooner.
        return Roles(split_pools(loads, (), _shapes(fast)))
    split, numbers = _among_fast(before, fast, loads, sample, long)
    return Roles(split, numbers, ends=(split.heavy_seconds, split.fast_seconds))


def _shapes(engines: Sequence[EngineState]) -> list[EngineShape]:
    return [engine.shape for engine in engines]


def _counted(sample: Collection[Expected]) -> tuple[Counts, Counts, Counts]:
    """What heavy engines run, what the others run, and what waits."""
    parts: tuple[Counts, Counts, Counts] = ({}, {}, {})
    # Counted one by one: lists of them would have the garbage collector look through all that is under way.
    for request, remaining in sample:
        engine = request.engine
        place = 2 if engine is None else 0 if engine.shape.pool == "heavy" else 1
        kv_tokens = request.kv_tokens
        count(parts[place], remaining, kv_tokens, kv_tokens if engine is None else 0)
    return parts


def _scaled(loads: Sequence[Load], every: int) -> list[Load]:
    return [load._replace(number=load.number * every) for load in loads]


def _ends(
    cut: float,
    heavy: Sequence[EngineState],
    fast: Sequence[EngineState],
    parts: tuple[Counts, Counts, Counts],
    every: int,
) -> tuple[float, float]:
    """When each pool has finished what it runs, and what comes to it by the cut."""
    on_heavy, on_fast, waiting = (_scaled(merged(part), every) for part in parts)
    to_heavy: list[Load] = on_heavy
    to_fast: list[Load] = []
    for loads, least in ((on_fast, SLACK * cut), (waiting, cut)):
        for load in loads:
            (to_heavy if load.remaining >= least else to_fast).append(load)
    ends = [
        shared(sorted(loads, key=lambda load: load.remaining), _shapes(engines))
        for loads, engines in ((to_heavy, heavy), (to_fast, fast))
    ]
    return ends[0], ends[1]


def _among_fast(
    before: Roles,
    engines: Sequence[EngineState],
    loads: Sequence[Load],
    sample: Collection[Expected],
    long: Set[RequestKey],
) -> tuple[Split, frozenset[int]]:
    """Without a heavy pool: engines that run long requests stay heavy until these have ended."""
    held = frozenset(
        engine.number
        for engine in engines
        if engine.number in before.heavy and not long.isdisjoint(engine.running)
    )
    found = split_engines(loads, _shapes(engines))
    # Never all of them: the others have to be taken by somebody.
    if len(held) < found.heavy or not held or len(held) == len(engines):
        return found, choose_heavy(found, engines, held, sample)
    return before.split, held


def choose_heavy(
    split: Split, engines: Sequence[EngineState], held: frozenset[int], sample: Collection[Expected]
) -> frozenset[int]:
    """As many engines as `split` says: those in `held`, which have to stay heavy, then the quickest ones, of
    these those that have most to do with long requests already, and least with others."""
    long: dict[int, float] = {}
    for request, remaining in sample:
        if request.engine is not None and remaining >= split.cut:
            number = request.engine.number
            long[number] = long.get(number, 0.0) + remaining

    def fit(engine: EngineState) -> tuple[bool, float, float, int, int]:
        number = engine.number
        return number not in held, engine.shape.slowness, -long.get(number, 0.0), engine.count, number

    return frozenset(engine.number for engine in sorted(engines, key=fit)[: split.heavy])
