"""What the simulation asks of whoever decides where requests run: the part of `routing.Router` that it uses.

Baselines that are no policy of the product implement it too. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from rljob_runtime.routing.requests import Action, EngineShape, GroupRequest, RequestKey


class Scheduler(Protocol):
    """Told of what happens, asked for actions. Times in seconds."""

    def join(self, engine: int, shape: EngineShape) -> None:
        """This engine takes requests."""
        ...

    def dispatch(self, group: GroupRequest, now: float) -> None:
        """A group begins."""
        ...

    def progressed(self, tokens: Mapping[RequestKey, int], now: float) -> None:
        """Response tokens so far of the requests that run."""
        ...

    def interrupted(self, key: RequestKey, tokens: int, now: float) -> bool:
        """A request left its engine unfinished, and waits; whether it is to begin anew, without its
        tokens."""
        ...

    def finished(self, key: RequestKey, tokens: int, now: float) -> None:
        """A response is complete."""
        ...

    def wants_group(self, awaited: bool) -> bool:
        """Whether a new group is to be dispatched: its first request would be placed at once, or the next
        training step awaits it and it is good to know early of it."""
        ...

    def decide(self, now: float) -> Sequence[Action]:
        """What to do now. All of it is done."""
        ...
