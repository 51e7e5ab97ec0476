"""What responses were worth, by how long they became, and beside those that the limit cut off.

Pure. Guarantees: memory is bounded by the groups whose rewards have not come yet (`PENDING` at most) and by
the number of limits.
"""

from bisect import bisect_left
from collections.abc import Sequence

from rljob_runtime.trace.analyse.cut_off import CutOff
from rljob_runtime.trace.analyse.requests import Request
from rljob_runtime.trace.analyse.what_if import LIMITS
from rljob_runtime.trace.record.event_log import Event

PENDING = 20_000
"""Groups with responses and without rewards that are kept: those that are given up get none."""


class RewardByLength:
    """Takes the responses that ended, and the `reward` events, in order of steps."""

    def __init__(self) -> None:
        self.cut_off = CutOff()
        self._pending: dict[int, list[tuple[int, int, bool]]] = {}
        """By uid: (number of the response in its group, its length, whether the limit cut it off)."""
        self._sums = [0.0] * (len(LIMITS) + 1)
        self._counts = [0] * (len(LIMITS) + 1)
        """By the first of `LIMITS` that a length does not exceed."""

    def add_step(self, ended: Sequence[Request], events: Sequence[Event]) -> None:
        """Take a step's."""
        for request in ended:
            _, _, index = request.name.partition(".")
            if index.isdigit():
                self._pending.setdefault(request.uid, []).append(
                    (int(index), request.length, request.finish == "length")
                )
        for event in events:
            if event.event == "reward":
                rewards = event.extra.get("rewards")
                found = self._pending.pop(event.extra.get("uid", -1), [])
                if isinstance(rewards, list):
                    self._count(found, rewards)
        while len(self._pending) > PENDING:
            # The oldest.
            del self._pending[next(iter(self._pending))]

    def _count(self, responses: Sequence[tuple[int, int, bool]], rewards: Sequence[object]) -> None:
        group: list[tuple[bool, float]] = []
        for index, length, cut_off in responses:
            reward = rewards[index] if index < len(rewards) else None
            if isinstance(reward, int | float):
                place = bisect_left(LIMITS, length)
                self._sums[place] += reward
                self._counts[place] += 1
                group.append((cut_off, reward))
        self.cut_off.add_group(group)

    def means(self, limit: int) -> tuple[float | None, float | None]:
        """Mean reward of the responses of at most `limit` tokens, one of `LIMITS`, and of those that are
        longer; None where there is none."""
        cut = LIMITS.index(limit) + 1
        found = []
        for part in (slice(0, cut), slice(cut, None)):
            count = sum(self._counts[part])
            found.append(sum(self._sums[part]) / count if count else None)
        return found[0], found[1]
