"""Whether a step that waits for its groups still gets nearer to them.

Guarantees: as long as anything moves, however slowly, nothing is called stalled; what moves is counted by
others and only compared here. Pure: the time is passed in.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Activity:
    """What has been done for groups so far; any difference between two looks is progress."""

    generated_tokens: tuple[tuple[str, int], ...]
    """For each engine that generates its name, and how many tokens it has generated since it was started."""
    rewards: int
    """Responses that came back from the reward function."""
    groups: int
    """Groups that were completed."""
    busy: bool = False
    """An engine is started or loads weights, which has deadlines of its own."""


class StallWatch:
    """Compares what it is shown over time; made when the waiting begins."""

    def __init__(self, seconds: float, now: float) -> None:
        """`seconds` without progress are a stall; `now` in seconds of any clock that does not go back."""
        self._seconds = seconds
        self._moved_at = now
        self._last: Activity | None = None

    def stalled(self, activity: Activity, now: float) -> bool:
        """Whether nothing has moved for too long; to be asked every now and then."""
        if activity.busy or activity != self._last:
            # The first look has nothing to compare with: the time counts from it.
            self._moved_at = now
        self._last = activity
        return now - self._moved_at >= self._seconds
