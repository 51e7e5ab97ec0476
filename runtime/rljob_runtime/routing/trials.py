"""Moves while it is not known what they cost: one at a time, until they are measured.

What prefill takes differs by factors of a thousand from engine to engine. Before engines have told what it
takes on them (`StepCost.assumed`), a move may cost many times what it saves; and it is a move that tells. So
the next one waits until the last one has generated a token where it went: then its prefill is measured.

Guarantees: while a pool's costs are assumed, no two requests are at once on the way to it, or being prefilled
there for a move; of moves that save nothing, and are made to tell, each pool gets a few. Pure.
"""

from collections import Counter
from collections.abc import Iterable

from rljob_runtime.routing.book import Book
from rljob_runtime.routing.requests import Move, RequestKey

_TELLING = 8
"""Moves to a pool that are made to tell alone. Where a step with a prefill takes long whatever the prefill's
length is, they leave open what a token takes, and each costs such a step."""


class Trials:
    """See the module."""

    def __init__(self) -> None:
        self._tried: dict[str, RequestKey] = {}
        """The request that was moved last to each pool, while its costs were assumed."""
        self._telling = Counter[str]()
        """How many were made to each pool to tell alone."""

    def allowed(self, moves: Iterable[Move], book: Book) -> list[Move]:
        """Those of these moves that may be made: all whose cost is known, and of the others one for each
        pool, where none is under way."""
        found: list[Move] = []
        tried: set[str] = set()
        for move in moves:
            shape = None if move.engine is None else book.engines[move.engine].shape
            if shape is not None and shape.cost.untried:
                if shape.pool in tried or self._under_way(shape.pool, book):
                    continue
                tried.add(shape.pool)
                self._tried[shape.pool] = move.request
            found.append(move)
        return found

    def telling(self, moves: Iterable[Move], book: Book) -> list[Move]:
        """Those of these moves, of which each is made to tell alone, that may be made beside what `allowed`
        says of them."""
        found: list[Move] = []
        for move in moves:
            pool = None if move.engine is None else book.engines[move.engine].shape.pool
            if pool is not None and self._telling[pool] < _TELLING and not self._under_way(pool, book):
                self._telling[pool] += 1
                found.append(move)
        return found

    def _under_way(self, pool: str, book: Book) -> bool:
        """Whether the last one has no token where it went."""
        key = self._tried.get(pool)
        group = None if key is None else book.groups.get(key.uid)
        request = None if key is None or group is None else group.requests.get(key.sample)
        return request is not None and (request.moving or request.waits or not request.begun)
