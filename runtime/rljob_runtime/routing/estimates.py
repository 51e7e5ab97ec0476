"""The expected length of each response under way, kept until what it follows from has changed.

Pure.
"""

import math
from collections.abc import Callable, Iterable

from rljob_runtime.routing.book import GroupState, RequestState
from rljob_runtime.routing.lengths import Lengths

Remaining = Callable[[RequestState], float]
"""Tokens that a response is expected to generate still."""

_GROWN = 1.25
"""Factor by which the longest running response of a group grows until the group's estimate is made anew."""


class Estimates:
    """See the module. `lengths` is what is known of lengths in general."""

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths
        self._groups: dict[int, tuple[float, float, float]] = {}
        """Mean and standard deviation of the logarithm of each group's lengths, since they last changed, and
        the tokens that the longest of them is expected to have."""
        self._grown: dict[int, float] = {}
        """Tokens from which on a response of each group changes its estimate."""

    def total(self, request: RequestState) -> float:
        """Tokens that a response is expected to have in the end."""
        uid = request.key.uid
        known = self._groups.get(uid)
        if known is None:
            group = request.group
            known = self._groups[uid] = self._made(group)
            longest = max([each.tokens for each in group.requests.values()])
            self._grown[uid] = min(max(math.exp(known[0]), _GROWN * longest), known[2])
        return self.lengths.total_of(request, *known)

    def _made(self, group: GroupState) -> tuple[float, float, float]:
        return *self.lengths.group(group), self.lengths.most(group)

    def peek(self, request: RequestState) -> float:
        """The same for whom decides nothing by it: what is kept stays as it is."""
        known = self._groups.get(request.key.uid) or self._made(request.group)
        return self.lengths.total_of(request, *known)

    def remaining(self, request: RequestState) -> float:
        """Tokens that a response is expected to generate still."""
        return self.total(request) - request.tokens

    def surely_remaining(self, request: RequestState) -> float:
        """Tokens that a response will generate still with five chances in six: of one that has none, what it
        will be is known from others alone, and one deviation below their mean."""
        remaining = self.remaining(request)
        if request.tokens:
            return remaining
        mean, sd, _ = self._groups[request.key.uid]
        return min(remaining, math.exp(mean - sd))

    def began(self, group: GroupState, under_way: int) -> None:
        """This group is dispatched, and `under_way` groups are not complete."""
        self.lengths.began(group, under_way)

    def fit_hazards(self) -> None:
        """Take into account how far all responses are now."""
        self.lengths.fit_hazards()

    def outgrown(self, requests: Iterable[RequestState]) -> Iterable[GroupState]:
        """These responses have more tokens. Returns the groups whose estimate that changes."""
        grown = self._grown.get
        groups = {
            request.key.uid: request.group
            for request in requests
            if request.tokens >= grown(request.key.uid, 0.0)
        }
        for uid in groups:
            self._groups.pop(uid, None)
        return groups.values()

    def finished(self, group: GroupState) -> None:
        """A response of this group is complete: the last of `group.finished`."""
        self.lengths.finished(group)
        self.renew(group)

    def renew(self, group: GroupState) -> None:
        """What is known of lengths in general has changed since this group was looked at."""
        self._groups.pop(group.request.uid, None)

    def forget(self, group: GroupState) -> None:
        """This group is not under way any more."""
        self.renew(group)
        self._grown.pop(group.request.uid, None)
