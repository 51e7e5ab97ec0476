"""Static placement, the baselines that published systems are compared with: the engine of a response follows
from its place in the batch alone. A request whose engine is busy waits for that engine.

Pure.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable

from rljob_runtime.routing.book import Book, EngineState, RequestState
from rljob_runtime.routing.policy import Entry, Lane, Policy


class _Fixed(Policy, ABC):
    """What the two have in common."""

    eager = True

    def __init__(self, groups_per_step: int) -> None:
        """`groups_per_step`: groups of a batch, which are spread evenly over the engines."""
        self._groups_per_step = groups_per_step
        self._engines: list[int] = []

    def serves(self, engine: EngineState, book: Book) -> tuple[Lane, ...]:
        return (engine.number,)

    def entry(self, request: RequestState, book: Book) -> Entry | None:
        if not self._engines:
            return None
        return Entry(self._engines[self._place(request, len(self._engines))], request.key)

    def engines_changed(self, book: Book) -> Iterable[RequestState]:
        self._engines = sorted(engine.number for engine in book.members())
        # Everything that waits is dealt anew over the engines that are there.
        return [request for group in book.groups.values() for request in group.requests.values()]

    @abstractmethod
    def _place(self, request: RequestState, engines: int) -> int:
        """Which of so many engines a request goes to, counted from 0."""


class Adjacent(_Fixed):
    """All responses to a prompt go to one engine, and neighbouring prompts to the same one: each engine gets
    a contiguous part of the batch."""

    def _place(self, request: RequestState, engines: int) -> int:
        return request.key.uid % self._groups_per_step * engines // self._groups_per_step


class Interleaved(_Fixed):
    """The responses to a prompt go to different engines, in turn, so that no engine gets all of a long
    group."""

    def _place(self, request: RequestState, engines: int) -> int:
        return (request.key.uid + request.key.sample) % engines
