"""The search for a plan of passes that groups of ranks share; see `hdp_plan`. Pure.

A level is a degree: level e has the aligned groups of 2**e ranks. Given the level of every sample, levels are
filled from the largest degree down: each sample goes to the group that is free first, longest sample first
(longest processing time first, Graham 1969), and each group packs its samples first-fit-decreasing. A group
begins when the last of its ranks is through with the levels above, and what levels above left uneven is
levelled by those below.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from typing import NamedTuple

import numpy as np

from rljob_runtime.parallel.cost_model import CostModel, Ints, padded

_ROUNDS = 24
"""How many times what blocks the end of a schedule is moved up a level."""
_OTHERS = 3
"""Beginnings besides the first from which that is done, the best ones."""
_EFFORT = 12_000
"""Samples to place in a search: 24 schedules of 512 samples, 600 of 20."""
_EFFORT_OF_EACH = 6
"""Times that a sample is placed at least where there are many."""
_BLOCK = 16
"""Bins that are passed over at once: about the square root of the most that a group has."""
_LEVELLED = 0.001
"""What a schedule may be longer than the mean of its ranks' work and count as levelled: more ranks for a
sample would only add to the work."""


_MOST_SECONDS = 1e8
"""Of all samples of a batch: what is summed stays far from what 64 bits hold in nanoseconds."""
_POSSIBLE = f"a batch takes 0 to {_MOST_SECONDS:,.0f} seconds, so its constants cannot be right"


@dataclass(frozen=True)
class Schedule:
    """Passes with the times of their ranks, in nanoseconds."""

    passes: dict[int, dict[int, list[list[int]]]]
    """The samples of each pass, by level and by number of the group in it. Levels descend, and a group's
    passes are in order."""
    ends: list[int]
    """When each rank is through."""
    work: int
    """Of all ranks together, without waiting."""

    @cached_property
    def makespan(self) -> int:
        """When the last rank is through."""
        return max(self.ends)

    @property
    def levelled(self) -> bool:
        """No rank waits for another, but for little."""
        return self.makespan * len(self.ends) <= (1 + _LEVELLED) * self.work


class _Tried(NamedTuple):
    levels: list[int]
    """Of each sample."""
    schedule: Schedule

    def moved(self, index: int, by: int) -> list[int]:
        """The levels with one sample's moved."""
        return [*self.levels[:index], self.levels[index] + by, *self.levels[index + 1 :]]


def _makespan(tried: _Tried) -> int:
    return tried.schedule.makespan


def _sample_costs(cost: CostModel, lengths: Ints, degree: int) -> Ints:
    """Nanoseconds of each sample, as `degree` ranks share it."""
    seconds = cost.sample_seconds(lengths, degree)
    wrong = ~np.isfinite(seconds) | (seconds < 0)
    if not wrong.any() and seconds.sum() > _MOST_SECONDS:
        wrong = seconds == seconds.max()
    if wrong.any():
        index = int(wrong.argmax())
        raise ValueError(
            f"sample {index}, of {lengths[index]} tokens, takes {seconds[index]:.6g} seconds by the cost "
            f"model on {degree} rank{'s' * (degree > 1)}: {_POSSIBLE}"
        )
    return np.rint(seconds * 1e9).astype(np.int64)


def _pass_cost(cost: CostModel, degree: int) -> int:
    """Nanoseconds of a pass of `degree` ranks, besides those of its samples."""
    seconds = cost.pass_seconds(degree)
    if not 0 <= seconds <= _MOST_SECONDS:
        ranks = f"{degree} rank{'s' * (degree > 1)}"
        raise ValueError(f"a pass of {ranks} takes {seconds:.6g} seconds by the cost model: {_POSSIBLE}")
    return round(seconds * 1e9)


class Levels:
    """The samples of a batch with what each costs at each level."""

    def __init__(self, lengths: Ints, world_size: int, cap: int, cost: CostModel, largest: int) -> None:
        """`lengths` in tokens, at least 1; `cap` is in tokens for a rank; `largest` is the largest degree, a
        power of two. Raises `ValueError` for seconds of `cost` that no step can take."""
        self._world = world_size
        degrees = [1 << level for level in range(largest.bit_length())]
        self._caps = [cap * degree for degree in degrees]
        tokens: Ints = np.array([padded(lengths, degree) for degree in degrees])
        self._tokens: list[list[int]] = tokens.tolist()
        self._table: Ints = np.array([_sample_costs(cost, lengths, degree) for degree in degrees])
        """Nanoseconds of each sample at each level, shape (levels, samples)."""
        self._costs: list[list[int]] = self._table.tolist()
        self._constants = [_pass_cost(cost, degree) for degree in degrees]
        self._bits = [(world_size >> level).bit_length() for level in range(len(degrees))]
        """Of a group's number, for each level. It stands in one integer with when the group is free, in the
        lowest bits: a heap of integers is twice as fast as one of pairs."""
        # With a sample's share of the constant of a full pass: how long a group is busy with it. Without it
        # groups with many short samples would end last. Above the bits of a group's number.
        self._busy: list[list[int]] = [
            [(own + constant * size // room) << bits for own, size in zip(costs, sizes, strict=True)]
            for costs, constant, sizes, room, bits in zip(
                self._costs, self._constants, self._tokens, self._caps, self._bits, strict=True
            )
        ]
        self._order: list[int] = np.argsort(-lengths, kind="stable").tolist()
        self._effort = 0
        held = tokens <= np.array(self._caps)[:, None]
        self._least: Ints = np.where(held.any(axis=0), held.argmax(axis=0), len(degrees))
        """The lowest level whose ranks hold the sample; the number of levels where none does."""

    def too_long(self) -> int | None:
        """A sample that no group holds."""
        refused = np.flatnonzero(self._least == len(self._caps))
        return int(refused[0]) if len(refused) else None

    def static(self, level: int) -> Schedule:
        """Every sample at one level; all must fit."""
        return self._fill([level] * len(self._least))

    def best(self) -> Schedule:
        """The schedule that ends first, of those that are tried.

        The search begins where every sample just fits; where none takes longer alone than the mean rank
        works, or half as long; and where none is below a level, for each level, so that one degree for all is
        among them. From the first of these and the best of the others it moves up what blocks the end; from
        the best that it finds, samples up and down one by one."""
        self._effort = max(_EFFORT, _EFFORT_OF_EACH * len(self._least))
        first = self._try(self._least.tolist())
        best = self._promoted(first)
        # With more work than the best takes there is nothing to gain, however level it is.
        others = [
            self._try(levels.tolist())
            for levels in self._beginnings()
            if (levels != self._least).any() and self._work(levels) < self._world * _makespan(best)
        ]
        for start in sorted(others, key=_makespan)[:_OTHERS]:
            best = min(best, start, self._promoted(start), key=_makespan)
        return self._improved(best).schedule

    def _beginnings(self) -> Iterator[Ints]:
        """Other levels to begin with than the lowest."""
        mean = self._work(self._least) // self._world
        quick = self._no_longer_than(mean)
        yield quick
        yield self._no_longer_than(mean // 2)
        # Sharing is work, so that the mean is larger once samples are shared.
        yield self._no_longer_than(self._work(quick) // self._world)
        for lowest in range(1, len(self._caps)):
            yield np.maximum(lowest, self._least)

    def _no_longer_than(self, longest: int) -> Ints:
        """The lowest level of each sample at which it alone takes no longer than so many nanoseconds; the
        top level where it always does."""
        quick = self._table <= longest - np.array(self._constants)[:, None]
        quick[-1] = True
        found: Ints = np.maximum(quick.argmax(axis=0), self._least)
        return found

    def _work(self, levels: Ints) -> int:
        """Nanoseconds of all ranks together for the samples at these levels, without the constants of their
        passes."""
        return int((self._table[levels, np.arange(len(levels))] << levels).sum())

    def _try(self, levels: list[int]) -> _Tried:
        self._effort -= len(levels)
        return _Tried(levels, self._fill(levels))

    def _promoted(self, best: _Tried) -> _Tried:
        """With what blocks the end moved up, while that may help."""
        tried = best
        for _ in range(_ROUNDS):
            blocking = None if tried.schedule.levelled else self._blocking(tried.schedule)
            if blocking is None or self._effort <= 0:
                break
            tried = self._try(tried.moved(blocking, 1))
            best = min(best, tried, key=_makespan)
        return best

    def _improved(self, best: _Tried) -> _Tried:
        """With samples moved up or down by one level where it ends sooner by that; longest first, until
        nothing helps or the effort is spent."""
        found = True
        while found:
            found = False
            for index in self._order:
                for move in (1, -1):
                    if not self._least[index] <= best.levels[index] + move < len(self._caps):
                        continue
                    if move > 0 and best.schedule.levelled:
                        continue
                    if self._effort <= 0:
                        return best
                    tried = self._try(best.moved(index, move))
                    if _makespan(tried) < _makespan(best):
                        best, found = tried, True
                        break
        return best

    def _blocking(self, schedule: Schedule) -> int | None:
        """The longest sample of the longest pass of the rank that ends last."""
        rank = schedule.ends.index(schedule.makespan)
        found: tuple[int, int] | None = None
        for level, passes in schedule.passes.items():
            if level + 1 == len(self._caps):
                continue
            for samples in passes.get(rank >> level, ()):
                longest = max(samples, key=lambda index: (self._costs[level][index], -index))
                seconds = self._seconds(level, samples)
                if found is None or seconds > found[0]:
                    found = seconds, longest
        return None if found is None else found[1]

    def _seconds(self, level: int, samples: Sequence[int]) -> int:
        costs = self._costs[level]
        return self._constants[level] + sum([costs[index] for index in samples])

    def _fill(self, levels: Sequence[int]) -> Schedule:
        """The schedule of samples at these levels."""
        members: list[list[int]] = [[] for _ in self._caps]
        for index in self._order:
            members[levels[index]].append(index)
        ends = [0] * self._world
        passes: dict[int, dict[int, list[list[int]]]] = {}
        work = 0
        for level in range(len(self._caps) - 1, -1, -1):
            if members[level]:
                passes[level], busy = self._fill_level(level, members[level], ends)
                work += busy << level
        return Schedule(passes, ends, work)

    def _fill_level(
        self, level: int, samples: Sequence[int], ends: list[int]
    ) -> tuple[dict[int, list[list[int]]], int]:
        """The passes of a level's samples, which come longest first, and how long all its groups together are
        busy with them; `ends` becomes when its ranks are through."""
        degree = 1 << level
        costs, constant = self._costs[level], self._constants[level]
        passes = self._dealt(level, samples, ends)
        total = 0
        for group, packed in passes.items():
            share = packed[0]
            if len(share) == 1:
                busy = constant + costs[share[0]]
            else:
                passes[group] = packed = self._first_fit(level, share)
                busy = constant * len(packed) + sum([costs[index] for index in share])
            total += busy
            first = group << level
            if degree == 1:
                ends[first] += busy
            else:
                # All of a group begin at one time: levels above have larger groups.
                ends[first : first + degree] = [ends[first] + busy] * degree
        return passes, total

    def _dealt(self, level: int, samples: Sequence[int], ends: Sequence[int]) -> dict[int, list[list[int]]]:
        """The samples of each group that gets any, in one pass. Each sample, in this order, goes to the group
        that is free first."""
        degree, bits, busy = 1 << level, self._bits[level], self._busy[level]
        starts = ends[: self._world // degree * degree : degree]
        # Groups beyond as many as there are samples get none.
        soonest = sorted(range(len(starts)), key=starts.__getitem__)[: len(samples)]
        free = [starts[group] << bits | group for group in soonest]
        dealt: dict[int, list[list[int]]] = {}
        # Each sample has a group of its own until one of these is free again before the next group.
        again: list[int] = []
        first_again = free[-1]
        for begin, group, index in zip(free, soonest, samples, strict=False):
            if begin > first_again:
                break
            dealt[group] = [[index]]
            end = begin + busy[index]
            again.append(end)
            if end < first_again:
                first_again = end
        number = len(again)
        if number == len(samples):
            return dealt
        free[:number] = again
        heapify(free)
        numbers = (1 << bits) - 1
        for index in samples[number:]:
            begin = free[0]
            group = begin & numbers
            if group in dealt:
                dealt[group][0].append(index)
            else:
                dealt[group] = [[index]]
            heapreplace(free, begin + busy[index])
        return dealt

    def _first_fit(self, level: int, samples: list[int]) -> list[list[int]]:
        """The passes of a group's samples, which come longest first; there is one at least."""
        cap, tokens = self._caps[level], self._tokens[level]
        sizes = [tokens[index] for index in samples]
        if sum(sizes) <= cap:
            return [samples]
        # None of those above half of the cap has room for another one.
        large = bisect_left(sizes, -cap, key=lambda size: -2 * size)
        bins = [[index] for index in samples[:large]]
        # Behind the bins stands an empty one, which has room for any sample.
        room = [*(cap - size for size in sizes[:large]), cap]
        # Of each block of bins no less than the most room in one: blocks that a sample does not fit into are
        # passed over.
        most = [cap] * (1 + len(samples) // _BLOCK)
        for index, size in zip(samples[large:], sizes[large:], strict=True):
            block = 0
            while most[block] < size:
                block += 1
            start = place = block * _BLOCK
            while room[place] < size:
                place += 1
            if place >= start + _BLOCK:
                most[block] = max(room[start : start + _BLOCK])
            room[place] -= size
            if place == len(bins):
                bins.append([index])
                room.append(cap)
            else:
                bins[place].append(index)
        return bins
