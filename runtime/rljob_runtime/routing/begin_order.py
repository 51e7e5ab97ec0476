"""In which order adaptive routing lets the responses of a training step begin.

Where a step takes many times more responses than run at a time, the order decides when its longest one
ends:

- The first response of each group, its probe, begins first. A group is *open* until one of its responses is
  complete, unless an earlier epoch told of its prompt when it began.
- While very many siblings of a step's open groups wait for their probes, and siblings are alike, its other
  groups go first, and the shortest of them before all. The longest group is among the open ones, and nobody
  can tell yet which it is: siblings of those that only seem long would have all places when it shows. Short
  ones are gone again by then.
- Then those that are expected to be longest go first. Of an open group that is at least twice what its
  longest response has: the longer that one has run, the longer it may still run.

But none before those of an earlier step, for which the trainer would wait. In a small batch there is no such
order, and the oldest group goes first. Pure.
"""

import math
from collections import Counter
from collections.abc import Sequence

from rljob_runtime.routing.book import Book, EngineState, GroupState, RequestState
from rljob_runtime.routing.lengths import Lengths

_WAVES = 6
"""Longest first is the order where a training step takes this many times more responses than run at a time.
With fewer the first to come are most of all, and the order gains less than the chance of one draw of
lengths."""
_OPEN_WAVES = 4
"""Open groups wait for others where so many times more of their responses wait than run at a time."""
_AS_MUCH_AGAIN = 2.0
"""How many times what it has generated an open group's longest response may become."""


class BeginOrder:
    """See the module."""

    def __init__(self, lengths: Lengths, groups_per_step: int | None) -> None:
        """`groups_per_step`: groups that a training step takes; None: all that there are."""
        self.longest_first = False
        """Whether the order is by expected length."""
        self.open_last: frozenset[int] = frozenset()
        """Steps of which open groups go last."""
        self._lengths = lengths
        self._groups_per_step = groups_per_step
        self._places = 0
        """Requests that all engines run at a time."""
        self._open: dict[int, int] = {}
        """Open groups by uid, with the responses that wait for their probe to tell."""
        self._siblings: Counter[int] = Counter()
        """Their sums by step."""

    def began(self, group: GroupState) -> None:
        """This group is under way."""
        uid = group.request.uid
        if not self._lengths.told(group.request.row):
            self._open[uid] = siblings = group.request.samples - 1
            self._siblings[self._step(uid)] += siblings

    def told(self, group: GroupState) -> bool:
        """A response of this group is complete, or the group is given up. Returns whether the order is
        another now."""
        uid = group.request.uid
        siblings = self._open.pop(uid, None)
        if siblings is None:
            return False
        step = self._step(uid)
        self._siblings[step] -= siblings
        if not self._siblings[step]:
            del self._siblings[step]
        return self._look_at_open()

    def plan(self, members: Sequence[EngineState], book: Book) -> bool:
        """Decide the order anew. `members`: engines that take requests. Returns whether it has changed."""
        before = self.longest_first
        self._places = sum(engine.shape.limit for engine in members)
        # It stays until everything has begun: what was put off must not be put off to the end.
        self.longest_first = (before and book.waiting > 0) or self._many_waves(members, book)
        return self._look_at_open() or before != self.longest_first

    def rank(self, request: RequestState, total: float) -> tuple[int, int, float]:
        """The smallest begins first. `total`: tokens that the response is expected to have in the end."""
        if not self.longest_first:
            return 0, 0, 0.0
        # Among what one step trains: the longest of all steps first would keep the trainer waiting for the
        # first of them.
        step = self._step(request.key.uid)
        if request.key.sample == 0 and not request.tokens:
            return step, 0, 0.0
        open_last = step in self.open_last
        if request.key.uid not in self._open:
            return step, 1, total if open_last else -total
        longest = max(each.tokens for each in request.group.requests.values())
        return step, 2 if open_last else 1, -max(total, _AS_MUCH_AGAIN * longest)

    def _step(self, uid: int) -> int:
        return uid // self._groups_per_step if self._groups_per_step else 0

    def _look_at_open(self) -> bool:
        """Decide anew of which steps open groups go last: those of which so many responses wait for a probe
        that the longest could not begin when they show. Returns whether that has changed."""
        before, self.open_last = self.open_last, frozenset()
        if self.longest_first and self._lengths.alike:
            most = _OPEN_WAVES * self._places
            self.open_last = frozenset(step for step, count in self._siblings.items() if count > most)
        return before != self.open_last

    def _many_waves(self, members: Sequence[EngineState], book: Book) -> bool:
        """Whether so many requests are under way that their order matters, and engines hold as many long ones
        at a time as they hold others: where the KV cache is the limit, the longest together drive each other
        out of it."""
        under_way = book.waiting + sum(len(engine.running) for engine in book.engines.values())
        # Those of one step have an order among them.
        first = next(iter(book.groups.values()), None)
        if first is not None and self._groups_per_step is not None:
            under_way = min(under_way, self._groups_per_step * first.request.samples)
        if len(members) < 2 or under_way < _WAVES * sum(engine.shape.limit for engine in members):
            return False
        mean, sd = self._lengths.mean, self._lengths.sd
        prompt_tokens = first.request.prompt_tokens if first is not None else 0
        expected = math.exp(mean + sd * sd / 2) + prompt_tokens
        return all(
            engine.shape.kv_tokens is None or engine.shape.limit * expected <= engine.shape.kv_tokens
            for engine in members
        )
