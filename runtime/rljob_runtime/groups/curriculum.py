"""Which prompts are trained next, by how difficult they turned out (`data.curriculum`; pools by pass rate, as
in prime-rl).

The order of the data is gone through as ever; a prompt that was tried before is trained, or passed over, by
the share of the pool that its newest group put it into. One whose first group is under way is passed over,
unless a whole epoch from there on has no other.

Guarantees: no place of the order is given to two groups, and a group keeps its place until it is trained or
refused, over restarts too; whether a prompt that was tried is passed over at a place is a pure function of
the seed, the place and the prompt's pass rate; no more than `_MOST_PASSED_OVER` places are passed over for
one group.
Pure: no clock, no I/O.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from rljob_api.data import Curriculum as CurriculumSettings
from rljob_runtime.data.shuffle import mix
from rljob_runtime.groups.ledger import Ledger

Pool = Literal["untried", "unsolved", "hard", "normal", "easy", "solved"]

_MOST_PASSED_OVER = 10_000
"""In a row; it takes some hundredths of a second."""
_STREAM = 0x43757272
"""The random stream of shares; shuffling has others."""


class CurriculumState(msgspec.Struct):
    """What a checkpoint keeps of a curriculum."""

    position: int = 0
    """The next place of the order."""
    places: dict[int, int] = {}
    """Places of the groups that were dispatched and are not done, by uid."""
    rates: dict[int, float] = {}
    """The newest pass rate of each prompt that was tried, 0 to 1, by `Prompt.row`; 0 where no group of it
    has had a reward."""
    passed_over: int = 0
    """Places that no group got, in all."""


def pool_of(settings: CurriculumSettings, rate: float | None) -> Pool:
    """The pool of a prompt by its pass rate; None: it was not tried yet."""
    if rate is None:
        return "untried"
    if rate <= 0:
        return "unsolved"
    if rate >= 1:
        return "solved"
    if rate <= settings.hard_up_to:
        return "hard"
    return "easy" if rate >= settings.easy_from else "normal"


class Curriculum:
    """See the module's guarantees."""

    def __init__(
        self,
        settings: CurriculumSettings,
        pass_reward: float,
        seed: int,
        rows: int,
        row_at: Callable[[int], int],
    ) -> None:
        """`rows`: prompts that there are; `row_at` gives `Prompt.row` at a place of the order, from 0."""
        self._settings = settings
        self._pass_reward = pass_reward
        self._seed = mix(seed, _STREAM)
        self._rows = rows
        self._row_at = row_at
        self._state = CurriculumState(places={}, rates={})
        self._first: set[int] = set()
        """The prompts whose first group is under way, by `Prompt.row`."""
        self._pools: Counter[Pool] = Counter()

    def place(self, uid: int) -> int:
        """The place of group `uid`: the one that it has, or the next one that is not passed over."""
        state = self._state
        if uid not in state.places:
            state.places[uid] = self._next()
            self._is_under_way(state.places[uid])
        return state.places[uid]

    def scored(self, row: int, rewards: Sequence[float]) -> None:
        """A group of the prompt of this row came back: the responses that have a reward have these."""
        if rewards:
            self._set(row, sum(reward >= self._pass_reward for reward in rewards) / len(rewards))
        elif row not in self._state.rates:
            # A prompt whose reward always fails must not be generated at each of its turns.
            self._set(row, 0.0)

    def state(self, done: Ledger) -> CurriculumState:
        """How it stands, without the groups that are `done`."""
        state = self._state
        state.places = {uid: place for uid, place in state.places.items() if uid not in done}
        return CurriculumState(state.position, dict(state.places), dict(state.rates), state.passed_over)

    def restore(self, state: CurriculumState) -> None:
        """Go on from `state`."""
        self._state = CurriculumState(state.position, dict(state.places), {}, state.passed_over)
        self._pools.clear()
        for row, rate in state.rates.items():
            self._set(row, rate)
        self._first.clear()
        for place in state.places.values():
            self._is_under_way(place)

    def metrics(self) -> dict[str, int]:
        """How many prompts are in each pool now, and `passed_over`."""
        tried = len(self._state.rates)
        pools: dict[str, int] = {"untried": self._rows - tried}
        pools |= {name: self._pools[name] for name in ("unsolved", "hard", "normal", "easy", "solved")}
        return {**pools, "passed_over": self._state.passed_over}

    def _is_under_way(self, place: int) -> None:
        row = self._row_at(place)
        if row not in self._state.rates:
            self._first.add(row)

    def _set(self, row: int, rate: float) -> None:
        self._first.discard(row)
        if (before := self._state.rates.get(row)) is not None:
            self._pools[pool_of(self._settings, before)] -= 1
        self._state.rates[row] = rate
        self._pools[pool_of(self._settings, rate)] += 1

    def _next(self) -> int:
        state = self._state
        for passed_over in range(_MOST_PASSED_OVER):
            if self._is_trained(state.position, again=passed_over >= self._rows):
                break
            state.position += 1
            state.passed_over += 1
        state.position += 1
        return state.position - 1

    def _is_trained(self, position: int, again: bool) -> bool:
        """Whether a place of the order is taken; `again`: also where the prompt's first group is under
        way."""
        row = self._row_at(position)
        pool = pool_of(self._settings, self._state.rates.get(row))
        if pool == "untried":
            return again or row not in self._first
        share: float = getattr(self._settings.shares, pool)
        return mix(self._seed, position) < share * 2**64
