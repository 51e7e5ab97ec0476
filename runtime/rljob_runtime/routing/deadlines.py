"""The deadlines of the groups under way: which of them the next training step waits for.

With a hard staleness bound a step waits for every group whose deadline has come (docs/algorithms.md, rule 2
of the bound). Pure.
"""

from rljob_runtime.routing.book import RequestState
from rljob_runtime.routing.requests import GroupRequest


def is_urgent(request: RequestState, urgent: int | None) -> bool:
    """Whether the next training step waits for a request: its deadline is `urgent` or before it. None: it
    waits for all alike."""
    return urgent is not None and request.group.request.deadline <= urgent


class Deadlines:
    """Groups under way, counted by deadline."""

    def __init__(self) -> None:
        self._groups: dict[int, int] = {}

    def began(self, group: GroupRequest) -> None:
        self._groups[group.deadline] = self._groups.get(group.deadline, 0) + 1

    def ended(self, group: GroupRequest) -> None:
        """A group is complete, or given up."""
        self._groups[group.deadline] -= 1
        if not self._groups[group.deadline]:
            del self._groups[group.deadline]

    @property
    def urgent(self) -> int | None:
        """The nearest deadline; None where all groups under way have the same one, so that none goes before
        the others."""
        return min(self._groups) if len(self._groups) > 1 else None
