"""Which pool sizes a search tries, and in which order. Pure.

Guarantees: the job's own sizes are tried first, where the accelerators suffice for them, so that none that is
found is slower; each rollout pool is also tried empty where the job may have it so; only sizes that the job
may have are tried, and never more than `MOST_TRIED`.

How fast a job is rises with the trainer to one best place and falls after it, for what one pool has the
others lack; where that place lies depends on what the engines are. So it is looked for with each of a few
parts of the engines' accelerators in the heavy pool. From the best of these places, workers go from one pool
to another, first many and then few, as long as that helps.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rljob_api.job import Spec
from rljob_api.pools import MOST_WORKERS
from rljob_runtime.parallel.busy_ranks import busy_ranks
from rljob_runtime.simulate.site import Sizes

MOST_TRIED = 96
"""Sizes."""
_HEAVY_PARTS = (0.0, 1.0, 0.5)
"""Of the engines' accelerators: those in the heavy pool. The ends first: whoever gives up on the way has most
of what matters."""
_STARTS = 2
"""Places from which workers are moved."""
_FIRST_MOVE, _LAST_MOVE = 8, 128
"""The accelerators divided by these are the most and the fewest that a move takes from a pool to another."""


@dataclass(frozen=True)
class Room:
    """The sizes that a job may have with so many accelerators."""

    spec: Spec
    accelerators: int
    suits: Callable[[Sizes], bool] = lambda _: True
    """Which of them are wanted."""

    def allows(self, sizes: Sizes) -> bool:
        """Whether the job may have these sizes, and they are wanted."""
        return (
            sizes.trainer >= 1
            and min(sizes.fast, sizes.heavy) >= 0
            and sizes.fast + sizes.heavy >= 1
            and max(sizes.trainer, sizes.fast, sizes.heavy) <= MOST_WORKERS
            and sizes.accelerators(self.spec) <= self.accelerators
            and self.suits(sizes)
            and sizes.refusal(self.spec) is None
        )

    @property
    def problem(self) -> str | None:
        """Why no job with such workers may have so many accelerators, or None."""
        largest = Sizes(MOST_WORKERS, MOST_WORKERS, MOST_WORKERS).accelerators(self.spec)
        if self.accelerators > largest:
            return (
                f"{self.accelerators} accelerators are more than a job may have: {largest}, with "
                f"{MOST_WORKERS} workers in each pool"
            )
        fewest = min(Sizes(1, *engines).accelerators(self.spec) for engines in ((1, 0), (0, 1)))
        if self.accelerators < fewest:
            told = f"{self.accelerators} accelerators are" if self.accelerators > 1 else "1 accelerator is"
            return f"{told} too few for one trainer worker and one engine, which have {fewest} together"
        return None

    @property
    def refusal(self) -> str | None:
        """Why the job may not have the largest trainer that leaves an engine; None where it may."""
        pools = self.spec.pools
        fast, heavy = pools.fast_rollout.accelerators_per_worker, pools.heavy_rollout.accelerators_per_worker
        most = (self.accelerators - min(fast, heavy)) // pools.trainer.accelerators_per_worker
        trainer = min(MOST_WORKERS, most)
        sizes = Sizes(trainer, 1, 0) if self._left(trainer) >= fast else Sizes(trainer, 0, 1)
        return sizes.refusal(self.spec)

    @property
    def own(self) -> Sizes | None:
        """The job's own sizes; None where the accelerators do not suffice, or they are not wanted."""
        own = Sizes.of(self.spec)
        return own if self.allows(own) else None

    def filled(self, trainer: int, heavy: int) -> Sizes | None:
        """Sizes with as many fast engines as remain, or with none where the job may not have them; None where
        it may have neither."""
        left = self._left(trainer) - heavy * self.spec.pools.heavy_rollout.accelerators_per_worker
        if trainer < 1 or heavy < 0 or left < 0:
            return None
        fast = min(MOST_WORKERS, left // self.spec.pools.fast_rollout.accelerators_per_worker)
        tries = (Sizes(trainer, count, heavy) for count in dict.fromkeys((fast, 0)))
        return next((sizes for sizes in tries if self.allows(sizes)), None)

    def divided(self, trainer: int, part: float) -> Sizes | None:
        """Sizes with about this part of the engines' accelerators in the heavy pool: all of them with 1, and
        at least one heavy engine above 0. None where the job may not have them."""
        most = self._left(trainer) / self.spec.pools.heavy_rollout.accelerators_per_worker
        heavy = min(MOST_WORKERS, int(most) if part == 1 else max(1, round(part * most)) if part else 0)
        if part == 1 and self.allows(alone := Sizes(trainer, 0, heavy)):
            return alone
        return self.filled(trainer, heavy)

    @cached_property
    def trainers(self) -> list[int]:
        """Sizes of the trainer that the job may have with any engines, each with more ranks that have
        something to train than those before it: others would take from the engines what makes no step
        shorter. Ascending."""
        found: list[int] = []
        most = 0
        each = self.spec.pools.trainer.accelerators_per_worker
        for count in range(1, min(MOST_WORKERS, self.accelerators // each) + 1):
            tries = (self.divided(count, part) for part in _HEAVY_PARTS)
            sizes = next((sizes for sizes in tries if sizes is not None), None)
            if sizes is not None and (busy := busy_ranks(sizes.applied(self.spec))) > most:
                found.append(count)
                most = busy
        return found

    def moved(self, sizes: Sizes, accelerators: int) -> list[Sizes]:
        """The same after about so many accelerators, at least those of a worker, went from a pool to another,
        or the trainer's and the heavy pool's both became larger or smaller: what two pools do together has
        its best place where they are equally fast, which moves between two of them pass by. Last without the
        fast pool."""
        each = self.spec.pools.heavy_rollout.accelerators_per_worker
        some = max(1, accelerators // each)
        up, down = self._trainer(sizes, accelerators), self._trainer(sizes, -accelerators)
        for_heavy, from_heavy = self._trainer(sizes, -some * each), self._trainer(sizes, some * each)
        tries = [
            *(self.filled(count, sizes.heavy) for count in (up, down)),
            *(self.filled(count, sizes.heavy + some) for count in {sizes.trainer, for_heavy, down, up}),
            *(self.filled(count, sizes.heavy - some) for count in {sizes.trainer, from_heavy, up, down}),
            Sizes(sizes.trainer, 0, sizes.heavy),
        ]
        return [found for found in tries if found is not None and self.allows(found)]

    def _trainer(self, sizes: Sizes, accelerators: int) -> int:
        """The next size of the trainer with about so many more, or fewer, accelerators; 0 where none has."""
        by = max(1, abs(accelerators) // self.spec.pools.trainer.accelerators_per_worker)
        if accelerators > 0:
            place = bisect_left(self.trainers, sizes.trainer + by)
        else:
            place = bisect_right(self.trainers, sizes.trainer - by) - 1
        return self.trainers[place] if 0 <= place < len(self.trainers) else 0

    def _left(self, trainer: int) -> int:
        """Accelerators for engines."""
        return self.accelerators - trainer * self.spec.pools.trainer.accelerators_per_worker


class _Tried:
    """What was tried, each sizes once."""

    def __init__(self, rate: Callable[[Sizes], float]) -> None:
        self._rate = rate
        self.rates: dict[Sizes, float] = {}

    def __call__(self, sizes: Sizes) -> float:
        """Samples per second; those of sizes for which no try is left are lower than any."""
        if sizes not in self.rates:
            if len(self.rates) == MOST_TRIED:
                return -math.inf
            self.rates[sizes] = self._rate(sizes)
        return self.rates[sizes]

    def best(self, sizes: Iterable[Sizes], count: int) -> list[Sizes]:
        """The fastest of these sizes, fastest first."""
        return sorted(dict.fromkeys(sizes), key=self, reverse=True)[:count]


def search(room: Room, rate: Callable[[Sizes], float]) -> dict[Sizes, float]:
    """The samples per second of all sizes that were tried; empty where the job may have none. `rate` says
    those of some sizes; what it raises goes through."""
    tried = _Tried(rate)
    starts = [] if room.own is None else [room.own]
    for sizes in starts:
        tried(sizes)
    lines = (_line(room, part) for part in _HEAVY_PARTS)
    starts += [line[_fastest(line, tried)] for line in lines if line]
    for start in tried.best(starts, _STARTS):
        _climb(room, start, tried)
    return tried.rates


def _fastest(line: Sequence[Sizes], tried: _Tried) -> int:
    return peak(len(line), lambda place: tried(line[place]))


def _line(room: Room, part: float) -> list[Sizes]:
    """Sizes with this part of the engines' accelerators in the heavy pool, by the trainer's. Without a fast
    pool several trainers leave as many engines, of which the largest counts."""
    found: list[Sizes] = []
    for trainer in room.trainers:
        sizes = room.divided(trainer, part)
        if sizes is None:
            continue
        if found and not sizes.fast and not found[-1].fast and found[-1].heavy == sizes.heavy:
            found.pop()
        found.append(sizes)
    return found


def peak(count: int, value: Callable[[int], float]) -> int:
    """The place of the largest of `count` values, which rise to it and fall after it. Looks at few of them:
    at 20 of ten thousand (Fibonacci search, where one of two places that are compared is known already)."""

    def at(place: int) -> float:
        return value(place) if place < count else -math.inf

    short, long = 1, 2
    while long <= count:
        short, long = long, short + long
    # The place is above `low`, and below `low + long`.
    low = -1
    while long > 2:
        left, right = low + long - short, low + short
        if at(left) < at(right):
            low = left
        short, long = long - short, short
    return low + 1


def _climb(room: Room, start: Sizes, tried: _Tried) -> None:
    """From some sizes on, to the best of those that a move leads to, as long as one is faster; then with
    smaller moves."""
    best, move = start, max(1, room.accelerators // _FIRST_MOVE)
    last = max(1, room.accelerators // _LAST_MOVE)
    while move >= last:
        found = tried.best((best, *room.moved(best, move)), 1)[0]
        if tried(found) > tried(best):
            best = found
        else:
            move //= 2
