"""What a routing policy decides, and a base that decides nothing special: every request may go to any engine,
oldest group first, and none moves.

A policy reads the `Book` and never changes it; the `Router` executes. Requests wait in lanes: an engine takes
requests from the lanes that it serves, of all that wait there the one with the smallest rank first. Pure.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

from rljob_runtime.routing.book import Book, EngineState, GroupState, RequestState
from rljob_runtime.routing.requests import Move

Lane: TypeAlias = int | Literal["any", "fast", "heavy"]
"""Where requests wait: for any engine, for those of a pool, or for the one engine with this number."""
Rank: TypeAlias = tuple[float, ...]
"""The smallest goes first. Within a lane all ranks have the same length."""


class Entry(NamedTuple):
    """Where and in which order a request waits."""

    lane: Lane
    rank: Rank


class Expectation(NamedTuple):
    """What a policy believes of a response when it places it. In response tokens."""

    tokens: float
    """Its length."""
    cut: float
    """The length from which on it would count as long; infinite where none does."""


class Division(NamedTuple):
    """How work is divided by length now."""

    engines: frozenset[int]
    """The engines that are for long responses, by number."""
    cut: float
    """Tokens still to come from which on a response is long; infinite where none is."""


class Policy:
    """See the module. Subclasses override what they decide otherwise; each call is told what has happened and
    returns the requests whose entry it changes."""

    eager = False
    """Whether groups are dispatched while requests of other groups wait: as long as engines have room for
    more than what goes before their first responses, and all groups without which the next training step
    cannot be. Else only when no request waits, which keeps groups as fresh as they can be."""

    @property
    def probes_first(self) -> bool:
        """Whether first responses alone go before the first response of a group that comes now; else all that
        waits does."""
        return True

    @property
    def division(self) -> Division | None:
        """How work is divided by length; None: not at all."""
        return None

    def expects(self, request: RequestState) -> Expectation | None:
        """What is believed of a response that has no token yet; None: nothing. Changes nothing."""
        return None

    def newcomer_room(self, book: Book) -> int:
        """Places on engines that new groups may take now."""
        return book.room

    def serves(self, engine: EngineState, book: Book) -> tuple[Lane, ...]:
        """The lanes from which an engine takes requests."""
        return ("any",)

    def score(self, engine: EngineState) -> float | None:
        """Of the engines with room the one with the smallest score gets the next request; None: this one is
        to get none now, although it has room.

        By default by the share of its limit in use, and not by the number of requests, because engines differ
        in size: of two engines with 8 requests each the one that can run 64 has more room than the one that
        can run 16."""
        return engine.count / engine.shape.limit

    def entry(self, request: RequestState, book: Book) -> Entry | None:
        """Where a request waits; None: it is held back."""
        return Entry("any", request.key)

    def engines_changed(self, book: Book) -> Iterable[RequestState]:
        """An engine has joined for the first time, or is gone."""
        return ()

    def load_changed(self, engine: EngineState) -> None:
        """What is on an engine, or whether it takes requests, has changed; told before it is scored."""

    def rescored(self, book: Book, now: float) -> Iterable[EngineState]:
        """Engines whose lanes or scores have changed for another reason than what is on them. Asked before
        anything is placed, and again after `settled`."""
        return ()

    def reentered(self, book: Book, now: float) -> Iterable[RequestState]:
        """Requests whose entry has changed for another reason than what was told. Asked after `rescored`."""
        return ()

    def dispatched(self, group: GroupState, book: Book, now: float) -> Iterable[RequestState]:
        """A group is under way. Its own requests are asked for their entries in any case."""
        return ()

    def progressed(self, requests: Iterable[RequestState], book: Book, now: float) -> Iterable[RequestState]:
        """These running requests have more tokens."""
        return ()

    def finished(self, request: RequestState, book: Book, now: float) -> Iterable[RequestState]:
        """A response is complete; its tokens are the last of its group's `finished`."""
        return ()

    def cancelled(self, group: GroupState, book: Book) -> Iterable[RequestState]:
        """A group was given up, or all its responses are complete."""
        return ()

    def settled(self, book: Book, now: float) -> Iterable[RequestState]:
        """Everything that waits and has room is placed. What is let go on now, or gets room by `rescored`, is
        placed at once."""
        return ()

    def moves(self, book: Book, now: float) -> Iterable[Move]:
        """Which running requests leave their engines. Asked when everything that waits and has room is
        placed. A move to an engine without room, or of a request that moves already, is passed over."""
        return ()
