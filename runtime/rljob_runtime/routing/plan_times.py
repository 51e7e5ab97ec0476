"""When adaptive routing makes its next plan: some time after the last one, or at once where so much has
changed that it does not fit any more. Times in seconds. Pure.
"""

import math
from collections import Counter

from rljob_runtime.routing.book import EngineState
from rljob_runtime.routing.roles import Roles

_GROUPS_PER_SECOND = 2500
"""For each so many groups under way the time between two plans grows by a second."""
_PLANS = 100
"""Plans in the time until all that is under way is finished, at most: where responses take hours there is no
hurry."""
_GROWTH = 0.25
"""A plan is made at once when groups or engines come that are this part of what the last one has seen: pools
that were about to finish together are not any more."""


class PlanTimes:
    """See the module."""

    def __init__(self, least: float) -> None:
        """`least`: seconds between two plans, at least."""
        self.plans = 0
        """Made so far."""
        self.next = -math.inf
        """When the next one may be made."""
        self._least = least
        self._new_groups = 0
        """Groups that have come since the last plan."""
        self._joined: set[int] = set()
        """Engines that take requests."""
        self._pools: Counter[str] = Counter()
        """How many of them each pool has."""
        self._seen = 0
        """How many there were at the last plan."""

    def group_came(self, under_way: int, roles: Roles) -> None:
        """One more group; `under_way`: with it so many are not complete."""
        self._new_groups += 1
        if roles.pooled and self._new_groups > _GROWTH * under_way:
            self.next = -math.inf

    def engine_changed(self, engine: EngineState, roles: Roles) -> None:
        """An engine may take requests now that took none, or the other way round."""
        if engine.joined == (engine.number in self._joined):
            return
        (self._joined.add if engine.joined else self._joined.discard)(engine.number)
        self._pools[engine.shape.pool] += 1 if engine.joined else -1
        first = engine.joined and self._pools[engine.shape.pool] == 1
        grown = roles.pooled and len(self._joined) > (1 + _GROWTH) * self._seen
        # Nobody is left that takes what waits for one of the two kinds.
        bereft = self._joined <= roles.heavy or (roles.heavy and self._joined.isdisjoint(roles.heavy))
        if first or grown or bereft:
            self.next = -math.inf

    def made(self, now: float, seconds: float, under_way: int) -> None:
        """A plan is made, by which the `under_way` groups are complete in so many seconds."""
        self.plans += 1
        self._new_groups, self._seen = 0, len(self._joined)
        # Where nothing is under way, what comes next is planned at once.
        pause = max(self._least, seconds / _PLANS, under_way / _GROUPS_PER_SECOND) if under_way else 0.0
        self.next = now + pause
