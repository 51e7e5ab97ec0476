"""Whether a step that waits for its groups still gets nearer to them.

Guarantees: as long as anything moves, however slowly, nothing is called stalled; what moves is counted by
others and only compared here. Pure: the time is passed in.
"""

from dataclasses import dataclass


class Stalled(RuntimeError):
    """Training waits for responses, and nobody works on them."""


@dataclass(frozen=True)
class Activity:
    """What has been done for groups so far; any difference between two looks is progress, but for an engine
    that is not told of: it may only not have answered."""

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
        self._tokens: dict[str, int] = {}
        """What each engine has told last."""

    def stalled(self, activity: Activity, now: float) -> bool:
        """Whether nothing has moved for too long; to be asked every now and then."""
        # The first look has nothing to compare with: the time counts from it.
        if self._last is None or activity.busy or self._moved(self._last, activity):
            self._moved_at = now
        self._last = activity
        self._tokens.update(activity.generated_tokens)
        return now - self._moved_at >= self._seconds

    def _moved(self, last: Activity, activity: Activity) -> bool:
        if (last.rewards, last.groups, last.busy) != (activity.rewards, activity.groups, activity.busy):
            return True
        return any(self._tokens.get(name) != tokens for name, tokens in activity.generated_tokens)
